//! Secrets of a class: keys, templates, and which may be given.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::builders::{claim_of, class_with, world};
use super::tally;
use crate::api::validated::SecretNames;
use crate::decide::PublishSecrets;
use crate::objects::SecretReference;
use crate::provision::{ProvisionerSecrets, SecretFamily, SecretTemplates, TemplateContext};

/// The key of a parameter: `name` and `namespace` of the family, `old-` the deprecated ones, `default-` those of all.
fn key(family: SecretFamily, word: &str) -> String {
    let (old, own) = match family {
        SecretFamily::Provisioner => ("csiProvisionerSecret", "provisioner-"),
        _ => ("csiNodePublishSecret", "node-publish-"),
    };
    match word {
        "old-name" => format!("{old}Name"),
        "old-namespace" => format!("{old}Namespace"),
        "default-name" => "csi.storage.k8s.io/secret-name".to_owned(),
        "default-namespace" => "csi.storage.k8s.io/secret-namespace".to_owned(),
        _ => format!("csi.storage.k8s.io/{own}secret-{word}"),
    }
}

fn resolve(family: SecretFamily, parameters: &[(&str, &str)]) -> String {
    let class = class_with(parameters);
    let selected = world().annotate("volume.kubernetes.io/selected-node", "node1");
    let claim = claim_of(&selected.annotate("akey", "avalue").claim);
    let context = TemplateContext {
        volume: "pvname",
        namespace: "pvcnamespace",
        name: "pvcname",
        claim: Some(&claim),
    };
    let templates = SecretTemplates::of(&class);
    match templates.and_then(|templates| templates.resolve(family, &context)) {
        Ok(None) => String::new(),
        Ok(Some(secret)) => format!("{}/{}", secret.namespace, secret.name),
        Err(error) => format!("!{error}"),
    }
}

/// Lines of a name, the parameters, and the Secret as namespace and name, `!` and a word of the text where it is an
/// error; `-` is none.
fn check(family: SecretFamily, table: &str) -> usize {
    let rows = table.lines().map(str::trim).filter(|row| !row.is_empty());
    let mut count = 0;
    for row in rows {
        let columns: Vec<&str> = row.split(" | ").collect();
        let [name, parameters, wanted] = columns[..] else {
            panic!("{row}")
        };
        let pairs = parameters.split("; ").filter_map(|pair| pair.split_once('='));
        let pairs: Vec<(String, &str)> = pairs.map(|(word, value)| (key(family, word), value)).collect();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        let found = resolve(family, &pairs);
        match wanted.strip_prefix('!') {
            Some(part) => assert!(found.starts_with('!') && found.contains(part), "{name}: {found}"),
            None => assert_eq!(found, wanted.trim_start_matches('-'), "{name}"),
        }
        count += 1;
    }
    count
}

/// TestGetSecretReference.
#[test]
fn keys_and_templates_as_in_the_sidecar() {
    let node_publish = check(
        SecretFamily::NodePublish,
        "
        none | - | -
        empty | old-name=; old-namespace= | !is empty
        deprecated name alone | old-name=foo | !both must be specified
        name alone | name=foo | !node-publish-secret-namespace
        deprecated namespace alone | old-namespace=foo | !both must be specified
        namespace alone | namespace=foo | !node-publish-secret-name
        deprecated | old-name=name; old-namespace=ns | ns/name
        both | old-name=name; old-namespace=ns; name=name; namespace=ns | !deprecated
        both names | old-name=name; old-namespace=ns; name=name | !deprecated
        both namespaces | old-name=name; old-namespace=ns; namespace=ns | !deprecated
        a deprecated name and a namespace | old-name=name; namespace=ns | ns/name
        simple | name=name; namespace=ns | ns/name
        no name of a Secret | old-name=bad name; old-namespace=ns | !\"bad name\"
        no namespace | old-name=name; old-namespace=bad ns | !\"bad ns\"
        all tokens | old-name=static-${pv.name}-${pvc.namespace}-${pvc.name}-${pvc.annotations['akey']}; \
            old-namespace=static-${pv.name}-${pvc.namespace} \
            | static-pvname-pvcnamespace/static-pvname-pvcnamespace-pvcname-avalue
        unknown token in a namespace | old-name=myname; old-namespace=mynamespace${bar} | !\"bar\"
        unknown token in a name | old-name=myname${foo}; old-namespace=mynamespace | !\"foo\"
        ",
    );
    let provisioner = check(
        SecretFamily::Provisioner,
        "
        deprecated, provisioner | old-name=name; old-namespace=ns | ns/name
        the claim does not matter | old-name=param-name; old-namespace=param-ns | param-ns/param-name
        template of a name alone | name=static-${pv.name}-${pvc.namespace}-${pvc.name}-${pvc.annotations['akey']} \
            | !both must be specified
        annotation, provisioner | namespace=static-${pvc.namespace}; \
            name=static-${pvc.name}-${pvc.annotations['akey']} | static-pvcnamespace/static-pvcname-avalue
        three tokens, provisioner | old-name=p-${pv.name}-${pvc.namespace}-${pvc.name}; \
            old-namespace=p-${pv.name}-${pvc.namespace} | p-pvname-pvcnamespace/p-pvname-pvcnamespace-pvcname
        name of the claim | old-name=${pvc.name}; old-namespace=ns | ns/pvcname
        name and namespace of the claim | old-name=${pvc.name}; old-namespace=${pvc.namespace} | pvcnamespace/pvcname
        namespace of the claim | old-name=static-name-1; old-namespace=${pvc.namespace} | pvcnamespace/static-name-1
        ",
    );
    tally("TestGetSecretReference", node_publish + provisioner);
}

#[test]
fn other_templates() {
    let default = "the default | default-name=d; default-namespace=ns | ns/d";
    check(SecretFamily::NodeExpand, default);
    check(SecretFamily::Default, default);
    check(
        SecretFamily::NodePublish,
        "
        its own before the default | default-name=d; default-namespace=ns; name=n; namespace=x | x/n
        half a default | default-name=d | !\"csi.storage.k8s.io/secret-namespace\" is missing
        its own before half a default | default-name=d; name=n; namespace=x | x/n
        an empty default | default-name=d; default-namespace= | !is empty
        its own before an empty default | default-name=d; default-namespace=; name=n; namespace=x | x/n
        claim in a namespace | name=n; namespace=${pvc.name} | !\"pvc.name\"
        annotation in a namespace | name=n; namespace=${pvc.annotations['akey']} | !pvc.annotations
        annotation that is missing | name=${pvc.annotations['other']}; namespace=x \
            | !\"other\", which the PersistentVolumeClaim does not have
        annotation that the operator reads as well \
            | name=n-${pvc.annotations['volume.kubernetes.io/selected-node']}; namespace=x | x/n-node1
        without an end | name=${pv.name; namespace=x | !unknown token
        without braces | name=$pv.name; namespace=x | !unknown token
        dollar alone | name=a$; namespace=x | !unknown token
        upper case | name=Name; namespace=x | !not the name of a Secret
        ",
    );
}

#[test]
fn the_list_bounds_what_a_driver_is_given() {
    let secret = |namespace: &str, name: &str| SecretReference {
        namespace: namespace.into(),
        name: name.into(),
    };
    let listed = [("storage".into(), SecretNames::Only(BTreeSet::from(["ebs".into()])))];
    let secrets = ProvisionerSecrets {
        listed: PublishSecrets::Listed(Arc::new(listed.into())),
        in_claim_namespace: Arc::new(BTreeSet::from(["tenant".into()])),
    };
    assert!(secrets.allows(&secret("storage", "ebs"), "web"));
    assert!(!secrets.allows(&secret("storage", "other"), "web"));
    assert!(secrets.allows(&secret("web", "tenant"), "web"));
    let is_allowed = secrets.allows(&secret("other", "tenant"), "web");
    assert!(!is_allowed, "another claim's namespace");
    assert!(!ProvisionerSecrets::default().allows(&secret("web", "tenant"), "web"));
}

#[test]
fn what_a_template_may_resolve_to() {
    let a = "${pvc.annotations['a']}";
    for (template, name, may) in [
        ("fixed", "fixed", true),
        ("fixed", "other", false),
        ("${pv.name}-s", "pv-1-s", true),
        ("${pv.name}-s", "pv-2-s", false),
        (a, "anything", true),
        (&format!("x-{a}"), "x-1", true),
        (&format!("x-{a}"), "y-1", false),
        (&format!("{a}-mid-{a}-end"), "1-mid-2-end", true),
        (&format!("{a}-mid-{a}-end"), "1-mi-2-end", false),
        (&format!("{a}-mid-{a}-mid-{a}"), "1-mid-2", false),
        (&format!("aba{a}aba"), "aba", false),
        ("${unknown}", "x", false),
        ("${pv.name", "pv-1", false),
    ] {
        let class = class_with(&[
            ("csi.storage.k8s.io/provisioner-secret-name", template),
            ("csi.storage.k8s.io/provisioner-secret-namespace", "ns"),
        ]);
        let context = TemplateContext {
            volume: "pv-1",
            namespace: "web",
            name: "data",
            claim: None,
        };
        let templates = SecretTemplates::of(&class).unwrap();
        let secret = |namespace: &str| SecretReference {
            namespace: namespace.into(),
            name: name.into(),
        };
        let found = |namespace| templates.may_name(SecretFamily::Provisioner, &context, &secret(namespace));
        assert_eq!((found("ns"), found("web")), (may, false), "{template} {name}");
        assert!(!templates.may_name(SecretFamily::NodeStage, &context, &secret("ns")));
    }
}
