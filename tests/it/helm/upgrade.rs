//! From an earlier chart, whose CRD was a template and whose AttacherConfigs were hooks in the first revision: no AttacherConfig is
//! lost. And from a CRD that is too old for the chart.

use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Value, json};

use super::{CRD, Helm, NAMESPACE, RELEASE, beginning, configs, fresh, names, uninstall};
use crate::rig::{World, operator_options, part};
use crate::support::prometheus::of_repository;
use crate::support::{ControlPlane, Error, Kubectl, Operator, Result};

/// The chart as it was packed at the commit 1fa75ae.
const EARLIER: &str = "tests/chart/earlier/csi-attacher-operator-1fa75ae.tgz";
const CHART: &str = super::CHART;
const CRDS: &str = "charts/csi-attacher-operator-crds";
/// Where the CRD has the fields of `spec`.
const SPEC: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
/// Two drivers by settings that both charts have.
const BULK: &str = "--set=attacherConfigs.bulk.endpoint=unix:///csi/bulk/csi.sock";
const FAST: &str = "--set=attacherConfigs.fast.endpoint=unix:///csi/fast/csi.sock";

impl Helm {
    /// `install` or `upgrade` of the release with this chart.
    async fn with(&self, verb: &str, chart: &str, settings: &[&str]) -> Result<(bool, String)> {
        let chart = of_repository(chart).display().to_string();
        self.run(&[&[verb, RELEASE, &chart], settings].concat()).await
    }

    async fn must(&self, verb: &str, chart: &str, settings: &[&str]) -> Result<String> {
        let (done, said) = self.with(verb, chart, settings).await?;
        if done {
            Ok(said)
        } else {
            Err(Error::Other(format!("helm {verb} {chart}: {said}")))
        }
    }

    /// What the chart advises when the CRD is too old.
    async fn upgrade_crd(&self, settings: &[&str]) -> Result<()> {
        let chart = of_repository(CRDS).display().to_string();
        let release = [RELEASE, "-crds"].concat();
        let command = ["upgrade", "--install", &release, &chart, "--take-ownership"];
        let (done, said) = self.run(&[&command, settings].concat()).await?;
        if done { Ok(()) } else { Err(Error::Other(said)) }
    }
}

/// Refused with the advice, done with it.
async fn upgrade_as_advised(helm: &Helm, settings: &[&str]) -> Result<String> {
    let (upgraded, said) = helm.with("upgrade", CHART, settings).await?;
    assert!(!upgraded, "{said}");
    assert!(said.contains("is too old for this chart: it does not have "), "{said}");
    assert!(said.contains("charts/csi-attacher-operator-crds"), "{said}");
    helm.upgrade_crd(&[]).await?;
    helm.must("upgrade", CHART, settings).await
}

/// One after another.
pub async fn histories(cluster: &ControlPlane) -> Result<()> {
    let rights = the_rights_of_provisioning_outlive_the_section_by_one_upgrade(cluster);
    part("rights", rights).await?;
    let too_old = a_crd_that_is_too_old_is_refused_and_a_newer_one_is_not(cluster);
    part("too old", too_old).await?;
    part("missing", a_missing_crd_is_named(cluster)).await
}

#[tokio::test]
async fn an_upgrade_from_hooks_loses_no_attacherconfig() -> Result<()> {
    let (_permit, _cluster, kubectl, helm) = fresh().await?;
    helm.must("install", EARLIER, &[BULK, FAST]).await?;
    let before = configs(&kubectl).await?;
    assert_eq!(names(&before), ["bulk", "fast"]);

    upgrade_as_advised(&helm, &[BULK, FAST]).await?;
    assert_eq!(configs(&kubectl).await?, before, "they were made anew");
    helm.must("upgrade", CHART, &[BULK, FAST]).await?;
    assert_eq!(configs(&kubectl).await?, before, "they were made anew");

    // They are the release's now: what the values do not have any more goes, and the rest with the release.
    helm.must("upgrade", CHART, &[FAST]).await?;
    assert_eq!(names(&configs(&kubectl).await?), ["fast"]);
    uninstall(&helm, &kubectl).await?;
    kubectl.run(&["get", "crd", CRD]).await?;
    Ok(())
}

/// Helm changes roles before AttacherConfigs: the rights of provisioning stay until the next upgrade.
async fn the_rights_of_provisioning_outlive_the_section_by_one_upgrade(cluster: &ControlPlane) -> Result<()> {
    let (kubectl, helm) = beginning(cluster).await?;
    let driver = "--set=attacherConfigs.bulk.driverName=bulk.example.com";
    let provisions = "--set=attacherConfigs.bulk.provisioning.mode=Enabled";
    let holds = "--set=attacherConfigs.bulk.provisioning.deletion=Hold";
    helm.must("install", CHART, &[BULK, driver, provisions]).await?;
    for (settings, may_patch, may_delete, is_told) in [
        (&[BULK, driver, holds][..], true, true, true),
        (&[BULK, driver, holds], true, false, false),
        (&[BULK, driver], true, false, true),
        (&[BULK, driver], false, false, false),
        (&[BULK, driver, provisions], true, true, false),
        (&[FAST], true, true, true),
        (&[FAST], false, false, false),
    ] {
        let said = helm.must("upgrade", CHART, settings).await?;
        assert_eq!(said.contains("keeps the permissions"), is_told, "{settings:?}: {said}");
        let path = "-o=jsonpath={.rules[*].resources} {.rules[*].verbs}";
        let rules = kubectl.run(&["get", "clusterrole", RELEASE, path]).await?;
        assert_eq!(
            rules.contains("persistentvolumeclaims"),
            may_patch,
            "{settings:?}: {rules}"
        );
        assert_eq!(rules.contains("\"delete\""), may_delete, "{settings:?}: {rules}");
    }
    Ok(())
}

/// An operator that serves a driver by the earlier chart's AttacherConfig goes on while that is upgraded: what is attached stays so, and
/// no call is made.
#[tokio::test]
async fn an_upgrade_with_volumes_attached_stops_no_driver() -> Result<()> {
    let world = World::own().await?;
    let (kubectl, helm) = (Kubectl::of(&world.cluster).await?, Helm::of(&world.cluster).await?);
    kubectl.run(&["create", "namespace", NAMESPACE]).await?;
    let bulk = format!(
        "--set=attacherConfigs.bulk.endpoint=unix://{}",
        world.socket("bulk").display()
    );
    helm.must("install", EARLIER, &[&bulk]).await?;
    let driver = world.unconfigured_driver("bulk", |mock| mock).await?;
    let operator = Operator::start_with(
        &world.cluster.admin_kubeconfig(),
        operator_options().variable("POD_NAMESPACE", NAMESPACE),
    )?;
    driver.attach("bulk-0").await?;
    operator.wait_for_log("upgrade the CRD").await?;
    let before = configs(&kubectl).await?;
    let calls = driver.mock.calls().len();

    upgrade_as_advised(&helm, &[&bulk]).await?;
    assert_eq!(configs(&kubectl).await?, before, "they were made anew");
    // The earlier CRD has no place for this status.
    driver.wait("Ready", "True", Some("Running")).await?;
    driver.attach("bulk-1").await?;
    let volumes: Vec<_> = driver
        .mock
        .calls()
        .into_iter()
        .skip(calls)
        .filter_map(|call| call.volume)
        .collect();
    assert_eq!(volumes, ["bulk-1"]);
    for name in ["bulk-0", "bulk-1"] {
        world.fixtures.delete::<VolumeAttachment>(name).await?;
        world.fixtures.wait_for_attachment_gone(name).await?;
    }
    assert!(driver.mock.published().is_empty());
    Ok(())
}

/// Back to the earlier chart it is by its own rules: to a revision with objects nothing is touched; to the first one, whose hooks make the
/// objects, they are made anew.
#[tokio::test]
async fn an_upgrade_from_objects_of_the_release_loses_none_either() -> Result<()> {
    let (_permit, _cluster, kubectl, helm) = fresh().await?;
    helm.must("install", EARLIER, &[BULK]).await?;
    helm.must("upgrade", EARLIER, &[BULK, FAST]).await?;
    let before = configs(&kubectl).await?;

    upgrade_as_advised(&helm, &[BULK, FAST]).await?;
    assert_eq!(configs(&kubectl).await?, before, "they were made anew");
    helm.must("upgrade", CHART, &[BULK, FAST]).await?;
    assert_eq!(configs(&kubectl).await?, before, "they were made anew");
    for (revision, expected) in [("2", &["bulk", "fast"][..]), ("1", &["bulk"])] {
        let (back, said) = helm.run(&["rollback", RELEASE, revision]).await?;
        assert!(back, "{revision}: {said}");
        let found = configs(&kubectl).await?;
        assert_eq!(names(&found), expected, "{revision}");
        assert_eq!(found == before, revision == "2", "{revision}");
    }
    Ok(())
}

/// A hook's object that the values do not have any more is of no revision: it stays, and the notes say so.
#[tokio::test]
async fn an_attacherconfig_that_is_left_over_is_named() -> Result<()> {
    let (_permit, _cluster, kubectl, helm) = fresh().await?;
    helm.must("install", EARLIER, &[BULK, FAST]).await?;
    let said = upgrade_as_advised(&helm, &[FAST]).await?;
    assert_eq!(names(&configs(&kubectl).await?), ["bulk", "fast"]);
    assert!(said.contains("kubectl delete attacherconfig bulk"), "{said}");
    assert!(!said.contains("attacherconfig fast\n"), "{said}");
    Ok(())
}

/// Helm would delete the CRD, which is not in the chart any more, and every AttacherConfig with it: the earlier revision was not to keep it,
/// and Flux or kubectl then put a file in its place, with whose annotations those of Helm were gone.
#[tokio::test]
async fn a_crd_that_was_not_to_be_kept_is_not_deleted() -> Result<()> {
    let (_permit, _cluster, kubectl, helm) = fresh().await?;
    helm.must("install", EARLIER, &[BULK, "--set=crds.keep=false"]).await?;
    let before = configs(&kubectl).await?;
    replace_crd(&kubectl).await?;
    // As a file of an earlier version.
    kubectl
        .run(&["annotate", "crd", CRD, "helm.sh/resource-policy-"])
        .await?;

    let (upgraded, said) = helm.with("upgrade", CHART, &[BULK]).await?;
    let advice = format!("kubectl annotate crd {CRD} helm.sh/resource-policy=keep");
    assert!(!upgraded && said.contains(&advice), "{said}");
    let words: Vec<&str> = advice.split(' ').skip(1).collect();
    kubectl.run(&words).await?;
    helm.must("upgrade", CHART, &[BULK]).await?;
    assert_eq!(configs(&kubectl).await?, before);
    Ok(())
}

async fn replace_crd(kubectl: &Kubectl) -> Result<()> {
    let file = of_repository("crds").display().to_string();
    kubectl.run(&["replace", "-f", &file]).await?;
    Ok(())
}

/// Only what the chart needs and the cluster does not have, or refuses, makes a CRD too old; a newer one is fine.
async fn a_crd_that_is_too_old_is_refused_and_a_newer_one_is_not(cluster: &ControlPlane) -> Result<()> {
    let (kubectl, helm) = beginning(cluster).await?;
    helm.must("install", CHART, &[BULK]).await?;
    let before = configs(&kubectl).await?;
    let words = "orphanPolicy/enum";
    let more_words = json!(["Later", "Retry", "TreatNotFoundAsDetached"]);
    let maximum = "concurrency/properties/attach/maximum";
    let minimum = "concurrency/properties/attach/minimum";
    let rule = "defaultFsType/x-kubernetes-validations/0/rule";
    // What the CRD in the cluster has, and of which field the chart then says that it lacks what.
    for (path, value, field, lacks) in [
        (words, json!(["Retry"]), "orphanPolicy", "enum"),
        (words, more_words, "", ""),
        (maximum, json!(100), "concurrency.attach", "maximum"),
        (maximum, json!(20_000), "", ""),
        (minimum, json!(100), "concurrency.attach", "minimum"),
        (rule, json!("self.matches('^[a-z]*$')"), "", ""),
        ("later", json!({"type": "string"}), "", ""),
    ] {
        replace_crd(&kubectl).await?;
        put(&kubectl, path, &value).await?;
        let (done, said) = helm.with("upgrade", CHART, &[BULK]).await?;
        assert_eq!(done, lacks.is_empty(), "{path} {value}: {said}");
        let told = format!("it does not have spec.{field} with this chart's {lacks}. First ");
        assert!(done || said.contains(&told), "{path} {value}: {said}");
    }
    assert_eq!(configs(&kubectl).await?, before);

    replace_crd(&kubectl).await?;
    let path = format!("{SPEC}/timeouts/properties/listVolumes");
    patch(&kubectl, &json!([{"op": "remove", "path": path}])).await?;
    for verb in ["upgrade", "template"] {
        let settings: &[&str] = if verb == "template" {
            &[BULK, "--dry-run=server"]
        } else {
            &[BULK]
        };
        let (done, said) = helm.with(verb, CHART, settings).await?;
        assert!(!done, "{verb}");
        assert!(
            said.contains("it does not have spec.timeouts.listVolumes. First "),
            "{said}"
        );
    }
    assert_eq!(configs(&kubectl).await?, before);
    // Somebody else than Helm has changed it last.
    helm.upgrade_crd(&["--force-conflicts"]).await?;
    helm.must("upgrade", CHART, &[BULK]).await?;
    assert_eq!(configs(&kubectl).await?, before);
    Ok(())
}

/// Sets what is at a path of the schema of `spec`.
async fn put(kubectl: &Kubectl, path: &str, value: &Value) -> Result<()> {
    let path = format!("{SPEC}/{path}");
    patch(kubectl, &json!([{"op": "add", "path": path, "value": value}])).await
}

async fn patch(kubectl: &Kubectl, patch: &Value) -> Result<()> {
    let patch = patch.to_string();
    kubectl.run(&["patch", "crd", CRD, "--type=json", "-p", &patch]).await?;
    Ok(())
}

/// Without the CRD an upgrade fails before it changes anything, and says what to do.
async fn a_missing_crd_is_named(cluster: &ControlPlane) -> Result<()> {
    let (kubectl, helm) = beginning(cluster).await?;
    helm.must("install", CHART, &["--skip-crds"]).await?;
    let (upgraded, said) = helm.with("upgrade", CHART, &[BULK]).await?;
    assert!(
        !upgraded && said.contains(&format!("the CRD {CRD} is missing")),
        "{said}"
    );
    helm.upgrade_crd(&[]).await?;
    helm.must("upgrade", CHART, &[BULK]).await?;
    assert_eq!(names(&configs(&kubectl).await?), ["bulk"]);
    Ok(())
}
