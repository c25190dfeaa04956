//! Who is not asked to provision does nothing for claims.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use serde_json::json;

use csi_mock_driver::Method;

use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::{SECRETS, Test, create, delete};

/// Who asks for the program under test.
const ASKER: &str = "system:serviceaccount:conformance:attacher";

pub fn scenarios() -> Vec<Scenario> {
    Group::new("provision-role")
        .demands(
            "an attacher that is not set up to provision neither looks at claims nor takes a Lease nor calls for them",
        )
        .safety("nothing-without-section", nothing)
        .done()
}

async fn nothing(t: Test) -> Outcome {
    let driver = &t.env.driver_name;
    let class = json!({ "metadata": { "name": t.id }, "provisioner": driver, "volumeBindingMode": "Immediate" });
    create::<StorageClass>(&t.api(), class).await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(t.env.client.clone(), SECRETS);
    let claim = json!({
        "metadata": { "name": t.id, "annotations": { "volume.kubernetes.io/storage-provisioner": driver } },
        "spec": {
            "storageClassName": t.id, "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    create(&claims, claim).await?;
    t.barrier("b").await?;
    let left_alone = is_left_alone(&t);
    delete(&claims, &t.id).await?;
    delete::<StorageClass>(&t.api(), &t.id).await?;
    left_alone
}

fn is_left_alone(t: &Test) -> Outcome {
    let count = t.env.driver.calls_of(Method::CreateVolume).len();
    same("number of CreateVolume", &count, &0)?;
    let lease = t.env.driver_name.replace('.', "-");
    let events = t.env.cluster.audit_events()?;
    let asked: Vec<String> = events
        .iter()
        .filter(|event| event.username == ASKER)
        .filter(|event| {
            event.resource == "persistentvolumeclaims" || (event.resource == "leases" && event.name == lease)
        })
        .map(|event| format!("{} {} {}", event.verb, event.resource, event.name))
        .collect();
    demand(asked.is_empty(), || format!("requests: {asked:?}"))
}
