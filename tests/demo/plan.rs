//! What the demonstration is made of: drivers, nodes, volumes and pods, by name. Everything it creates has a name from
//! here, so that it can look for others' objects before it starts and remove its own at the end.

/// Namespace of the claims and pods.
pub const NAMESPACE: &str = "csi-attacher-demo";

/// Namespace and name of the operator's own objects, as in `config/rbac.yaml`.
pub const PRODUCT: &str = "csi-attacher-operator";

/// Name of the objects of `config/samples/rbac-provisioning.yaml`.
pub const PROVISIONING: &str = "csi-attacher-operator-provisioning";

/// The ClusterRoles of `config/rbac.yaml`: the operator's own, and the one that lets people read its objects; and the one for
/// provisioning.
pub const CLUSTER_ROLES: [&str; 3] = [PRODUCT, "csi-attacher-operator-view", PROVISIONING];

/// The StorageClass of the first driver.
pub const CLASS: &str = "demo-ssd";

/// The claim whose volume the operator makes, and the pod that uses it.
pub const CLAIM: &str = "demo-provisioned";
/// See [`CLAIM`].
pub const POD: &str = "provisioned-0";

/// The CustomResourceDefinition of the operator.
pub const DEFINITION: &str = "attacherconfigs.attacher.csi.dev";

/// The nodes, which have no kubelet: the demonstration plays it.
pub const NODES: [&str; 2] = ["demo-node-1", "demo-node-2"];

/// A CSI driver, served by one `csi-mock-driver` process.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// Its CSI name, which is also the name of its CSIDriver object.
    pub name: &'static str,
    /// The name of its AttacherConfig.
    pub config: &'static str,
    /// How long its backend takes to attach or detach a volume.
    pub delay: &'static str,
}

/// Two drivers of different speed, so that one can be seen not to wait for the other.
pub const DRIVERS: [Driver; 2] = [
    Driver {
        name: "ssd.demo.example.com",
        config: "demo-ssd",
        delay: "200ms",
    },
    Driver {
        name: "hdd.demo.example.com",
        config: "demo-hdd",
        delay: "800ms",
    },
];

/// A PersistentVolume, together with a claim of the same name.
#[derive(Clone, Copy, Debug)]
pub struct DemoVolume {
    /// Name of the PersistentVolume and of the PersistentVolumeClaim.
    pub name: &'static str,
    /// The handle by which its driver knows it.
    pub handle: &'static str,
    /// The driver.
    pub driver: &'static str,
}

/// A pod and what it mounts.
#[derive(Clone, Copy, Debug)]
pub struct DemoPod {
    /// Its name.
    pub name: &'static str,
    /// The node it is scheduled to.
    pub node: &'static str,
    /// Its volumes.
    pub volumes: &'static [DemoVolume],
}

const fn ssd(name: &'static str, handle: &'static str) -> DemoVolume {
    let driver = DRIVERS[0].name;
    DemoVolume { name, handle, driver }
}

const fn hdd(name: &'static str, handle: &'static str) -> DemoVolume {
    let driver = DRIVERS[1].name;
    DemoVolume { name, handle, driver }
}

/// Four pods on two nodes; one of them uses a volume of each driver.
pub const PODS: [DemoPod; 4] = [
    DemoPod {
        name: "web-0",
        node: NODES[0],
        volumes: &[ssd("demo-web-0", "ssd-0001")],
    },
    DemoPod {
        name: "web-1",
        node: NODES[1],
        volumes: &[ssd("demo-web-1", "ssd-0002")],
    },
    DemoPod {
        name: "database-0",
        node: NODES[0],
        volumes: &[
            ssd("demo-database-log", "ssd-0003"),
            hdd("demo-database-data", "hdd-0001"),
        ],
    },
    DemoPod {
        name: "backup-0",
        node: NODES[1],
        volumes: &[hdd("demo-backup", "hdd-0002")],
    },
];

/// All volumes of all pods, each with the node where its pod runs.
pub fn volumes() -> impl Iterator<Item = (DemoVolume, &'static str)> {
    PODS.iter()
        .flat_map(|pod| pod.volumes.iter().map(|volume| (*volume, pod.node)))
}

/// How many volumes a driver has.
pub fn volumes_of(driver: &str) -> usize {
    volumes().filter(|(volume, _)| volume.driver == driver).count()
}

/// The id by which the drivers know a node.
pub fn node_id(node: &str) -> String {
    format!("id-of-{node}")
}
