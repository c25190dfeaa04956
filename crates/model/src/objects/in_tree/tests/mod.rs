//! The translations of table 4.9 of the sidecar's behaviour, every plug-in with each of its errors.

#![allow(
    clippy::too_many_lines,
    clippy::needless_pass_by_value,
    reason = "tables, with objects written out in the rows"
)]

mod gce;

use serde_json::{Value, json};

use super::InTreePlugin;
use crate::objects::{CsiSource, PersistentVolumeWire, SecretReference, Volume, VolumeSource};

fn decode(metadata: Value, spec: Value) -> Volume {
    let mut object = json!({"metadata": {"name": "pv1"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    json_patch::merge(&mut object, &json!({"metadata": metadata, "spec": spec}));
    let wire: PersistentVolumeWire = serde_json::from_value(object).unwrap();
    wire.into()
}

fn translate(metadata: Value, spec: Value) -> Result<CsiSource, String> {
    let volume = decode(metadata, spec);
    let plugin = volume.in_tree.unwrap();
    match volume.spec.source {
        VolumeSource::Csi(source) => {
            assert_eq!(&*source.driver, plugin.as_str());
            Ok(*source)
        }
        VolumeSource::Untranslated(error) => Err(error.to_string()),
        VolumeSource::Other => panic!("not in-tree"),
    }
}

/// What attaching sees of a source, in one line.
fn show(source: Result<CsiSource, String>) -> String {
    let source = match source {
        Ok(source) => source,
        Err(error) => return format!("error: {error}"),
    };
    let attributes: Vec<String> = source
        .attributes
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let access = if source.read_only { "ro" } else { "rw" };
    let mut line = format!(
        "{} {access} fs[{}] ctx[{}]",
        source.handle,
        source.fs_type,
        attributes.join(",")
    );
    if let Some(SecretReference { namespace, name }) = source.publish_secret {
        line = format!("{line} secret {namespace}/{name}");
    }
    line
}

fn check(rows: &[(&str, Value, Value, &str)]) {
    for (name, metadata, spec, expected) in rows {
        assert_eq!(show(translate(metadata.clone(), spec.clone())), *expected, "{name}");
    }
}

#[test]
fn aws_elastic_block_store() {
    let volume = |id: &str| json!({"awsElasticBlockStore": {"volumeID": id}});
    let invalid = |id: &str| {
        format!("error: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({id})")
    };
    let good = "vol-1 rw fs[] ctx[partition=0]";
    let rows = [
        ("bare", "vol-1", good.to_owned()),
        ("bare and strange", "who/knows", "who/knows rw fs[] ctx[partition=0]".to_owned()),
        ("with zone", "aws://us-east-1a/vol-1", good.to_owned()),
        ("without zone", "aws:///vol-1", good.to_owned()),
        ("trailing slash", "aws:///vol-1/", good.to_owned()),
        ("with a query", "aws:///vol-1?a=b#c", good.to_owned()),
        ("no volume", "aws://us-east-1a/disk-1", invalid("aws://us-east-1a/disk-1")),
        ("nothing", "aws://", invalid("aws://")),
        ("a path", "aws:///vol-1/vol-2", invalid("aws:///vol-1/vol-2")),
        (
            "escaped",
            "aws:///vol-%zz",
            "error: failed to translate Kubernetes ID to EBS Volume ID Invalid disk name (aws:///vol-%zz): not a valid URL"
                .to_owned(),
        ),
    ];
    for (name, id, expected) in rows {
        assert_eq!(show(translate(json!({}), volume(id))), expected, "{name}");
    }
    let full =
        json!({"awsElasticBlockStore": {"volumeID": "vol-1", "partition": 2, "fsType": "ext4", "readOnly": true}});
    assert_eq!(show(translate(json!({}), full)), "vol-1 ro fs[ext4] ctx[partition=2]");
}

#[test]
fn azure_disk() {
    let disk = |more: Value| {
        let mut source = json!({"diskName": "n", "diskURI": "/subscriptions/s/disks/d", "kind": "Managed"});
        json_patch::merge(&mut source, &more);
        json!({"azureDisk": source})
    };
    let managed = "/subscriptions/s/disks/d rw fs[] ctx[kind=Managed]";
    let rows = [
        ("managed", disk(json!({})), managed),
        ("in any case", disk(json!({"kind": "mANAGED"})), managed),
        ("of no kind", disk(json!({"kind": null})), managed),
        (
            "all there is",
            disk(json!({"cachingMode": "ReadOnly", "fsType": "xfs", "readOnly": true})),
            "/subscriptions/s/disks/d ro fs[xfs] ctx[cachingmode=ReadOnly,fstype=xfs,kind=Managed]",
        ),
        (
            "shared",
            disk(json!({"kind": "Shared"})),
            "error: kind(Shared) is not supported in csi migration",
        ),
        (
            "dedicated",
            disk(json!({"kind": "Dedicated"})),
            "error: kind(Dedicated) is not supported in csi migration",
        ),
    ];
    for (name, spec, expected) in rows {
        assert_eq!(show(translate(json!({}), spec)), expected, "{name}");
    }
}

#[test]
fn azure_file() {
    let file = |secret: &str, more: Value| {
        let mut spec = json!({"azureFile": {"secretName": secret, "shareName": "share"}});
        json_patch::merge(&mut spec, &more);
        spec
    };
    let claim = || json!({"claimRef": {"namespace": "team", "name": "data"}});
    let in_source =
        |namespace: &str| json!({"azureFile": {"secretNamespace": namespace}, "claimRef": {"namespace": "team"}});
    let grouped = json!({"annotations": {"kubernetes.io/azure-file-resource-group": "rg"}});
    let none = "error: could not find a secret namespace in PersistentVolumeSource or ClaimRef";
    let rows = [
        (
            "account from the secret's name",
            json!({}),
            file("azure-storage-account-acc-secret", claim()),
            "#acc#share#pv1#team rw fs[] ctx[sharename=share]",
        ),
        (
            "account up to the last -secret",
            json!({}),
            file("my-azure-storage-account-a-secret-b-secret-2", claim()),
            "#a-secret-b#share#pv1#team rw fs[] ctx[sharename=share]",
        ),
        (
            "another secret name",
            json!({}),
            file("secret", claim()),
            "#secret#share#pv1#team rw fs[] ctx[sharename=share]",
        ),
        (
            "no account in the name",
            json!({}),
            file("azure-storage-account--secret", claim()),
            "#azure-storage-account--secret#share#pv1#team rw fs[] ctx[sharename=share]",
        ),
        (
            "resource group",
            grouped,
            file("s", claim()),
            "rg#s#share#pv1#team rw fs[] ctx[sharename=share]",
        ),
        (
            "namespace in the source",
            json!({}),
            file("s", in_source("sys")),
            "#s#share#pv1#sys rw fs[] ctx[sharename=share]",
        ),
        (
            "read-only",
            json!({}),
            file("s", json!({"azureFile": {"readOnly": true, "secretNamespace": "n"}})),
            "#s#share#pv1#n ro fs[] ctx[sharename=share]",
        ),
        (
            "an empty namespace in the source counts",
            json!({}),
            file("s", in_source("")),
            none,
        ),
        ("no namespace", json!({}), file("s", json!({})), none),
        (
            "no namespace in the claim",
            json!({}),
            file("s", json!({"claimRef": {"name": "data"}})),
            none,
        ),
    ];
    check(&rows);
}

#[test]
fn cinder_vsphere_and_portworx() {
    let token = |name: &str, namespace: &str| json!({"annotations": {"openstorage.io/auth-secret-name": name, "openstorage.io/auth-secret-namespace": namespace}});
    let half = json!({"annotations": {"openstorage.io/auth-secret-name": "token"}});
    let rows = [
        (
            "cinder",
            json!({}),
            json!({"cinder": {"volumeID": "v"}}),
            "v rw fs[] ctx[]",
        ),
        (
            "cinder in full",
            json!({}),
            json!({"cinder": {"volumeID": "v", "fsType": "ext3", "readOnly": true, "secretRef": {"name": "ignored"}}}),
            "v ro fs[ext3] ctx[]",
        ),
        (
            "vsphere",
            json!({}),
            json!({"vsphereVolume": {"volumePath": "[ds] a.vmdk"}}),
            "[ds] a.vmdk rw fs[] ctx[]",
        ),
        (
            "vsphere with a policy",
            json!({}),
            json!({"vsphereVolume": {"volumePath": "p", "fsType": "xfs", "storagePolicyName": "gold", "storagePolicyID": "x"}}),
            "p rw fs[xfs] ctx[storagepolicyname=gold]",
        ),
        (
            "portworx",
            json!({}),
            json!({"portworxVolume": {"volumeID": "v"}}),
            "v rw fs[] ctx[]",
        ),
        (
            "portworx with a secret; read-only is for the mount",
            token("token", "px"),
            json!({"portworxVolume": {"volumeID": "v", "fsType": "xfs", "readOnly": true}}),
            "v rw fs[xfs] ctx[] secret px/token",
        ),
        (
            "portworx with half a secret",
            half,
            json!({"portworxVolume": {"volumeID": "v"}}),
            "v rw fs[] ctx[]",
        ),
    ];
    check(&rows);
}

#[test]
fn the_mark_tells_plug_in_and_driver() {
    let annotations = json!({"annotations": {"pv.kubernetes.io/migrated-to": "cinder.csi.openstack.org"}});
    let volume = decode(annotations, json!({"cinder": {"volumeID": "v"}}));
    assert!(!volume.is_in_tree_without("cinder.csi.openstack.org") && volume.is_in_tree_without("other.test"));
    let unmarked = decode(json!({}), json!({"azureDisk": {"kind": "Shared"}}));
    assert!(unmarked.is_in_tree_without("disk.csi.azure.com"));
    assert!(!decode(json!({}), json!({"nfs": {}})).is_in_tree_without("any.test"));
    for plugin in InTreePlugin::ALL {
        assert_eq!(InTreePlugin::of_word(plugin.as_str()), Some(*plugin));
    }
    assert_eq!(InTreePlugin::of_word("other.test"), None);
}
