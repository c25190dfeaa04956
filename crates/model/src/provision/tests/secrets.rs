//! Secrets of a class: keys, templates, and which may be given.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::builders::{claim_of, class_with, world};
use super::tally;
use crate::api::validated::SecretNames;
use crate::decide::PublishSecrets;
use crate::objects::SecretReference;
use crate::provision::{ProvisionerSecrets, SecretFamily, SecretTemplates, TemplateContext};

/// A name, the parameters, and the Secret as namespace and name; none where there is none, `!` and a word of the text where it is an
/// error.
type Row = (&'static str, &'static [(&'static str, &'static str)], &'static str);

const OLD_NAME: &str = "csiNodePublishSecretName";
const OLD_NAMESPACE: &str = "csiNodePublishSecretNamespace";
const NAME: &str = "csi.storage.k8s.io/node-publish-secret-name";
const NAMESPACE: &str = "csi.storage.k8s.io/node-publish-secret-namespace";
const PROVISIONER_NAME: &str = "csi.storage.k8s.io/provisioner-secret-name";
const PROVISIONER_NAMESPACE: &str = "csi.storage.k8s.io/provisioner-secret-namespace";
const OLD_PROVISIONER_NAME: &str = "csiProvisionerSecretName";
const OLD_PROVISIONER_NAMESPACE: &str = "csiProvisionerSecretNamespace";
const ANNOTATED: &str = "static-${pvc.name}-${pvc.annotations['akey']}";
const ALL_TOKENS: &str = "static-${pv.name}-${pvc.namespace}-${pvc.name}-${pvc.annotations['akey']}";

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

fn check(family: SecretFamily, rows: &[Row]) -> usize {
    for (name, parameters, wanted) in rows {
        let found = resolve(family, parameters);
        match wanted.strip_prefix('!') {
            Some(part) => assert!(found.starts_with('!') && found.contains(part), "{name}: {found}"),
            None => assert_eq!(found, *wanted, "{name}"),
        }
    }
    rows.len()
}

/// TestGetSecretReference.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn keys_and_templates_as_in_the_sidecar() {
    use SecretFamily::{NodePublish, Provisioner};
    let node_publish: [Row; 17] = [
        ("none", &[], ""),
        ("empty", &[(OLD_NAME, ""), (OLD_NAMESPACE, "")], "!is empty"),
        ("deprecated name alone", &[(OLD_NAME, "foo")], "!both must be specified"),
        ("name alone", &[(NAME, "foo")], "!node-publish-secret-namespace"),
        (
            "deprecated namespace alone",
            &[(OLD_NAMESPACE, "foo")],
            "!both must be specified",
        ),
        ("namespace alone", &[(NAMESPACE, "foo")], "!node-publish-secret-name"),
        ("deprecated", &[(OLD_NAME, "name"), (OLD_NAMESPACE, "ns")], "ns/name"),
        (
            "both",
            &[
                (OLD_NAME, "name"),
                (OLD_NAMESPACE, "ns"),
                (NAME, "name"),
                (NAMESPACE, "ns"),
            ],
            "!deprecated",
        ),
        (
            "both names",
            &[(OLD_NAME, "name"), (OLD_NAMESPACE, "ns"), (NAME, "name")],
            "!deprecated",
        ),
        (
            "both namespaces",
            &[(OLD_NAME, "name"), (OLD_NAMESPACE, "ns"), (NAMESPACE, "ns")],
            "!deprecated",
        ),
        (
            "a deprecated name and a namespace",
            &[(OLD_NAME, "name"), (NAMESPACE, "ns")],
            "ns/name",
        ),
        ("simple", &[(NAME, "name"), (NAMESPACE, "ns")], "ns/name"),
        (
            "no name of a Secret",
            &[(OLD_NAME, "bad name"), (OLD_NAMESPACE, "ns")],
            "!\"bad name\"",
        ),
        (
            "no namespace",
            &[(OLD_NAME, "name"), (OLD_NAMESPACE, "bad ns")],
            "!\"bad ns\"",
        ),
        (
            "all tokens",
            &[
                (OLD_NAME, ALL_TOKENS),
                (OLD_NAMESPACE, "static-${pv.name}-${pvc.namespace}"),
            ],
            "static-pvname-pvcnamespace/static-pvname-pvcnamespace-pvcname-avalue",
        ),
        (
            "unknown token in a namespace",
            &[(OLD_NAME, "myname"), (OLD_NAMESPACE, "mynamespace${bar}")],
            "!\"bar\"",
        ),
        (
            "unknown token in a name",
            &[(OLD_NAME, "myname${foo}"), (OLD_NAMESPACE, "mynamespace")],
            "!\"foo\"",
        ),
    ];
    let provisioner: [Row; 8] = [
        (
            "deprecated, provisioner",
            &[(OLD_PROVISIONER_NAME, "name"), (OLD_PROVISIONER_NAMESPACE, "ns")],
            "ns/name",
        ),
        (
            "the claim does not matter",
            &[
                (OLD_PROVISIONER_NAME, "param-name"),
                (OLD_PROVISIONER_NAMESPACE, "param-ns"),
            ],
            "param-ns/param-name",
        ),
        (
            "template of a name alone",
            &[(PROVISIONER_NAME, ALL_TOKENS)],
            "!both must be specified",
        ),
        (
            "annotation, provisioner",
            &[
                (PROVISIONER_NAMESPACE, "static-${pvc.namespace}"),
                (PROVISIONER_NAME, ANNOTATED),
            ],
            "static-pvcnamespace/static-pvcname-avalue",
        ),
        (
            "three tokens, provisioner",
            &[
                (OLD_PROVISIONER_NAME, "p-${pv.name}-${pvc.namespace}-${pvc.name}"),
                (OLD_PROVISIONER_NAMESPACE, "p-${pv.name}-${pvc.namespace}"),
            ],
            "p-pvname-pvcnamespace/p-pvname-pvcnamespace-pvcname",
        ),
        (
            "name of the claim",
            &[(OLD_PROVISIONER_NAME, "${pvc.name}"), (OLD_PROVISIONER_NAMESPACE, "ns")],
            "ns/pvcname",
        ),
        (
            "name and namespace of the claim",
            &[
                (OLD_PROVISIONER_NAME, "${pvc.name}"),
                (OLD_PROVISIONER_NAMESPACE, "${pvc.namespace}"),
            ],
            "pvcnamespace/pvcname",
        ),
        (
            "namespace of the claim",
            &[
                (OLD_PROVISIONER_NAME, "static-name-1"),
                (OLD_PROVISIONER_NAMESPACE, "${pvc.namespace}"),
            ],
            "pvcnamespace/static-name-1",
        ),
    ];
    tally(
        "TestGetSecretReference",
        check(NodePublish, &node_publish) + check(Provisioner, &provisioner),
    );
}

#[test]
fn other_templates() {
    use SecretFamily::{Default, NodeExpand, NodePublish};
    const DEFAULT: (&str, &str) = ("csi.storage.k8s.io/secret-name", "d");
    const DEFAULT_NAMESPACE: (&str, &str) = ("csi.storage.k8s.io/secret-namespace", "ns");
    let node_expand: [Row; 1] = [("the default", &[DEFAULT, DEFAULT_NAMESPACE], "ns/d")];
    let node_publish: [Row; 9] = [
        (
            "its own before the default",
            &[DEFAULT, DEFAULT_NAMESPACE, (NAME, "n"), (NAMESPACE, "x")],
            "x/n",
        ),
        (
            "claim in a namespace",
            &[(NAME, "n"), (NAMESPACE, "${pvc.name}")],
            "!\"pvc.name\"",
        ),
        (
            "annotation in a namespace",
            &[(NAME, "n"), (NAMESPACE, "${pvc.annotations['akey']}")],
            "!pvc.annotations",
        ),
        (
            "annotation that is missing",
            &[(NAME, "${pvc.annotations['other']}"), (NAMESPACE, "x")],
            "!\"other\", which the PersistentVolumeClaim does not have",
        ),
        (
            "annotation that the operator reads as well",
            &[
                (NAME, "n-${pvc.annotations['volume.kubernetes.io/selected-node']}"),
                (NAMESPACE, "x"),
            ],
            "x/n-node1",
        ),
        (
            "without an end",
            &[(NAME, "${pv.name"), (NAMESPACE, "x")],
            "!unknown token",
        ),
        (
            "without braces",
            &[(NAME, "$pv.name"), (NAMESPACE, "x")],
            "!unknown token",
        ),
        ("dollar alone", &[(NAME, "a$"), (NAMESPACE, "x")], "!unknown token"),
        (
            "upper case",
            &[(NAME, "Name"), (NAMESPACE, "x")],
            "!not the name of a Secret",
        ),
    ];
    let default: [Row; 1] = [("the default itself", &[DEFAULT, DEFAULT_NAMESPACE], "ns/d")];
    check(NodeExpand, &node_expand);
    check(NodePublish, &node_publish);
    check(Default, &default);
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
    assert!(
        !secrets.allows(&secret("other", "tenant"), "web"),
        "another claim's namespace"
    );
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
