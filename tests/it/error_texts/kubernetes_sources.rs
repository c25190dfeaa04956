//! Messages of the kubelet and of the scheduler. They are not brought about here: each is put together of the format strings in the
//! sources of the Kubernetes release that the test control plane is built from, as Go's module cache has them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::index::is_instance;

/// A message, and the format strings that make it: each of the others takes the place of the last verb of the one before it.
type Message = (&'static str, &'static [(&'static str, &'static str)]);

const OPERATIONS: &str = "pkg/volume/util/operationexecutor/operation_generator.go";
const EXECUTOR: &str = "pkg/volume/util/operationexecutor/operation_executor.go";
const VOLUME_MANAGER: &str = "pkg/kubelet/volumemanager/volume_manager.go";

/// How an error about a volume is written: `<what failed> for volume "<volume>" : <error>`.
const FOR_VOLUME: (&str, &str) = (EXECUTOR, "%v for volume %q %v");
const ERROR: (&str, &str) = (EXECUTOR, ": %v");

const MESSAGES: &[Message] = &[
    (
        "Unable to attach or mount volumes: unmounted volumes=<volumes>, unattached volumes=<volumes>, failed to process \
         volumes=<volumes>: <error>",
        &[
            ("pkg/kubelet/kubelet.go", "Unable to attach or mount volumes: %v"),
            (
                VOLUME_MANAGER,
                "unmounted volumes=%v, unattached volumes=%v, failed to process volumes=%v: %w",
            ),
        ],
    ),
    (
        "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=<volumes>, unattached volumes=<volumes>, failed \
         to process volumes=<volumes>: <error>",
        &[(
            VOLUME_MANAGER,
            "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=%v, unattached volumes=%v, failed to \
             process volumes=%v: %v",
        )],
    ),
    (
        "MountVolume.MountDevice failed for volume \"<volume>\" : kubernetes.io/csi: attacher.MountDevice failed to create \
         newCsiDriverClient: driver name <driver> not found in the list of registered CSI drivers",
        &[
            FOR_VOLUME,
            ERROR,
            ("pkg/volume/csi/csi_util.go", "%s: %s"),
            (
                "pkg/volume/csi/csi_attacher.go",
                "attacher.MountDevice failed to create newCsiDriverClient: %v",
            ),
            (
                "pkg/volume/csi/csi_client.go",
                "driver name %s not found in the list of registered CSI drivers",
            ),
        ],
    ),
    (
        "MountVolume.WaitForAttach failed for volume \"<volume>\" : volume <volume ID> is not attached for volume attachment <name>",
        &[
            FOR_VOLUME,
            ERROR,
            (
                "pkg/volume/csi/csi_attacher.go",
                "volume %v is not attached for volume attachment %v",
            ),
        ],
    ),
    (
        "Volume not attached according to node status for volume \"<volume>\" <pod>",
        &[(EXECUTOR, "%v for volume %q %v %v")],
    ),
    (
        "<n> node(s) exceed max volume count",
        &[
            ("pkg/scheduler/framework/types.go", "%v %v"),
            (
                "pkg/scheduler/framework/plugins/nodevolumelimits/csi.go",
                "node(s) exceed max volume count",
            ),
        ],
    ),
    (
        "<n> node(s) didn't match PersistentVolume's node affinity",
        &[
            ("pkg/scheduler/framework/types.go", "%v %v"),
            (
                "pkg/scheduler/framework/plugins/volumebinding/binder.go",
                "node(s) didn't match PersistentVolume's node affinity",
            ),
        ],
    ),
    (
        "pod has unbound immediate PersistentVolumeClaims",
        &[(
            "pkg/scheduler/framework/plugins/volumebinding/volume_binding.go",
            "pod has unbound immediate PersistentVolumeClaims",
        )],
    ),
];

/// What stands in place of the first verb of [`FOR_VOLUME`], with its file, for each message that is made by it.
const OPERATION_NAMES: &[&str] = &[
    "MountVolume.MountDevice failed",
    "MountVolume.WaitForAttach failed",
    "Volume not attached according to node status",
];

pub fn texts() -> Vec<&'static str> {
    MESSAGES.iter().map(|(message, _)| *message).collect()
}

/// The folder of the pinned release in the module cache; it is downloaded there when the control plane came from another place.
fn sources() -> PathBuf {
    let pins = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/controlplane/kubernetes");
    let go = |arguments: &[&str]| {
        let ended = Command::new("go")
            .args(arguments)
            .current_dir(&pins)
            .env("GOWORK", "off")
            .output();
        let ended = ended.expect("go starts");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8_lossy(&ended.stdout).trim().to_owned()
    };
    go(&["mod", "download", "k8s.io/kubernetes"]);
    PathBuf::from(go(&["list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"]))
}

/// Puts `inner` in place of the last verb of a format string.
fn fill_last(format: &str, inner: &str) -> String {
    let at = format.rfind('%').unwrap_or_else(|| panic!("{format:?} has no verb"));
    format!("{}{inner}{}", &format[..at], &format[at + 2..])
}

/// Something that the format strings can print.
fn printed(formats: &[(&str, &str)], name: Option<&str>) -> String {
    let (last, before) = formats.split_last().expect("there is one");
    let whole = before
        .iter()
        .rev()
        .fold(last.1.to_owned(), |inner, (_, format)| fill_last(format, &inner));
    let whole = name.map_or_else(|| whole.clone(), |name| whole.replacen("%v", name, 1));
    // The name of the plugin, a constant of csi_plugin.go.
    let whole = whole.replace("%s: attacher", "kubernetes.io/csi: attacher");
    whole
        .replace("%q", "\"x\"")
        .replace("%v", "1")
        .replace("%s", "x")
        .replace("%w", "x")
}

#[test]
fn the_sources_of_kubernetes_have_the_format_strings() {
    let root = sources();
    let mut files = BTreeMap::new();
    let mut has = |file: &str, text: &str| {
        let content = files.entry(file.to_owned()).or_insert_with(|| {
            std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
        });
        // A text of its own, in the quotation marks of Go.
        content.contains(&format!("\"{text}\""))
    };
    for (message, formats) in MESSAGES {
        for (file, format) in *formats {
            assert!(has(file, format), "{file} has no {format:?}, for {message}");
        }
        let name = OPERATION_NAMES.iter().find(|name| message.starts_with(**name));
        if let Some(name) = name {
            assert!(has(OPERATIONS, name), "{OPERATIONS} has no {name:?}");
        }
        let text = printed(formats, name.copied());
        assert!(
            is_instance(message, &text),
            "the index says\n{message}\nbut printed is\n{text}"
        );
    }
    assert!(has("pkg/volume/csi/csi_plugin.go", "kubernetes.io/csi"));
}

#[test]
fn format_strings_are_put_together() {
    assert_eq!(fill_last("a %v b %v.", "c %s"), "a %v b c %s.");
    let formats = [("f", "%v for volume %q %v"), ("f", ": %v"), ("f", "driver %s")];
    assert_eq!(
        printed(&formats, Some("Mount failed")),
        "Mount failed for volume \"x\" : driver x"
    );
}
