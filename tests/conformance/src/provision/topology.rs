//! Where volumes must be reachable from.

use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::scenario::Outcome;
use crate::test::{Test, create};

/// The driver's one topology key.
pub const ZONE: &str = "topology.conformance.test/zone";

impl Test {
    /// A Node, in a zone if one is given, on which the driver is registered.
    pub async fn given_zone(&self, name: &str, zone: Option<&str>) -> Outcome {
        let labels = zone.map_or(json!({}), |zone| json!({ ZONE: zone }));
        let node = json!({ "metadata": { "name": name, "labels": labels } });
        create::<Node>(&self.api(), node).await?;
        let registered = self.with_node(name);
        let driver = json!({ "name": self.env.driver_name, "nodeID": registered.node_id, "topologyKeys": [ZONE] });
        registered.given_node_of(json!([driver])).await
    }

    fn with_node(&self, name: &str) -> Self {
        Self {
            node: name.to_owned(),
            node_id: format!("{name}-node"),
            ..self.clone()
        }
    }
}
