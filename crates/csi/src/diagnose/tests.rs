//! Each way in which a path can be no usable socket, and what is told of it.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};

use super::*;
use crate::api::condition::{ConditionReason, MAX_MESSAGE_BYTES};
use crate::api::validated::Endpoint;
use crate::telemetry::{Metrics, Span};
use crate::{CsiClient, DialError, DialFault, DriverConnection, Probe};

/// How dialling this path fails.
async fn dial(path: &Path) -> DialError {
    let client = CsiClient::new(
        DriverConnection::new(&Endpoint::Unix(path.to_owned())),
        Metrics::default(),
    );
    let limit = std::time::Duration::from_secs(30);
    let called = tokio::time::timeout(limit, client.call(&Probe, limit, &Span::disabled())).await;
    called.unwrap().unwrap_err();
    client.connection().dial_error().expect("the dial failed")
}

const TOO_LONG: &str =
    "a-path-of-more-than-107-bytes-which-no-socket-can-have-because-the-kernel-has-room-for-no-more-in-its-sockaddr_un";

/// A path, the reason, and parts of the message; OWNER stands for the owner of what the test makes.
const PATHS: [(&str, ConditionReason, &[&str]); 13] = [
    (
        "gone.sock",
        ConditionReason::SocketMissing,
        &["is the driver running and its socket directory mounted"],
    ),
    (
        "no/gone.sock",
        ConditionReason::SocketMissing,
        &["not even its directory", "drivers.NAME.hostPath", "volumeMounts"],
    ),
    (
        "dangling",
        ConditionReason::SocketMissing,
        &["dangling is a symlink to gone.sock, which is not there"],
    ),
    (
        "dangling-twice",
        ConditionReason::SocketMissing,
        &["dangling is a symlink to gone.sock, which is not there"],
    ),
    (
        "dangling-directory/csi.sock",
        ConditionReason::SocketMissing,
        &["is a symlink to no-directory"],
    ),
    (
        "file",
        ConditionReason::NotASocket,
        &[
            "is a regular file",
            "OWNER",
            "mode 0640",
            "name the driver's socket in spec.endpoint",
        ],
    ),
    (
        "link-to-file",
        ConditionReason::NotASocket,
        &["is a regular file", "OWNER", "mode 0640"],
    ),
    (
        "file/csi.sock",
        ConditionReason::NotASocket,
        &["file is a regular file", "so that no socket can be below it"],
    ),
    (
        "directory",
        ConditionReason::NotASocket,
        &["is a directory", "OWNER", "mode 2750", "name the socket in it"],
    ),
    (
        "deserted",
        ConditionReason::ConnectionRefused,
        &["connection refused; the driver is not listening", "OWNER", "mode 0755"],
    ),
    (
        "link-to-deserted",
        ConditionReason::ConnectionRefused,
        &["not listening", "OWNER"],
    ),
    ("loop", ConditionReason::DialFailed, &["symbolic links"]),
    (
        TOO_LONG,
        ConditionReason::DialFailed,
        &["bytes are too long", "107", "shorter path"],
    ),
];

#[tokio::test]
async fn what_is_at_the_path_is_told_with_the_mend() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("file"), "").unwrap();
    std::fs::set_permissions(at("file"), std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::create_dir(at("directory")).unwrap();
    std::fs::set_permissions(at("directory"), std::fs::Permissions::from_mode(0o2750)).unwrap();
    symlink("gone.sock", at("dangling")).unwrap();
    symlink("dangling", at("dangling-twice")).unwrap();
    symlink("no-directory", at("dangling-directory")).unwrap();
    symlink("file", at("link-to-file")).unwrap();
    symlink("loop", at("loop")).unwrap();
    drop(UnixListener::bind(at("deserted")).unwrap());
    std::fs::set_permissions(at("deserted"), std::fs::Permissions::from_mode(0o755)).unwrap();
    symlink("deserted", at("link-to-deserted")).unwrap();
    let _datagrams = UnixDatagram::bind(at("datagrams")).unwrap();
    let owner = FilePermissions::from(&std::fs::metadata(at("file")).unwrap());
    let owner = format!("owner {}:{}", owner.uid, owner.gid);
    for (name, reason, parts) in PATHS {
        let path = at(name);
        let error = dial(&path).await;
        let text = error.to_string();
        assert_eq!(error.reason(), reason, "{text}");
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        for part in parts {
            let part = part.replace("OWNER", &owner);
            assert!(text.contains(&part), "{name}: no {part:?} in {text}");
        }
        assert!(text.len() < MAX_MESSAGE_BYTES, "{text}");
    }
    let datagrams = dial(&at("datagrams")).await;
    assert_eq!(datagrams.reason(), ConditionReason::DialFailed, "{datagrams}");
}

/// What the directory has beside a socket that is missing.
#[tokio::test]
async fn sockets_beside_a_missing_one_are_named() {
    const RUNNING: &str = "no such socket; is the driver running";
    let long = "x".repeat(65);
    for (sockets, words) in [
        (
            vec!["csi-provisioner.sock"],
            "its directory has csi-provisioner.sock: if the driver's is among these, name it in spec.endpoint; else:",
        ),
        (vec!["c.sock", "a", "b.sock"], "its directory has a, b.sock, c.sock: if"),
        (vec![], RUNNING),
        (vec!["a", "b", "c", "d"], RUNNING),
        // Whoever makes such names says nothing in a status.
        (vec!["a b", "`c`", "d\n", long.as_str()], RUNNING),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        std::fs::create_dir(folder.path().join("directory")).unwrap();
        for name in &sockets {
            // Short enough also where the folder of temporary files is deep.
            drop(UnixListener::bind(folder.path().join("s")).unwrap());
            std::fs::rename(folder.path().join("s"), folder.path().join(name)).unwrap();
        }
        let text = dial(&folder.path().join("csi.sock")).await.to_string();
        assert!(text.contains(words), "{sockets:?}: {text}");
    }
}

#[tokio::test]
async fn a_path_that_ends_with_a_blank_is_quoted() {
    let folder = tempfile::tempdir().unwrap();
    drop(UnixListener::bind(folder.path().join("csi.sock")).unwrap());
    let text = dial(&folder.path().join("csi.sock ")).await.to_string();
    let path = folder.path().display();
    let words = format!("\"{path}/csi.sock \": no such socket; its directory has csi.sock: if");
    assert!(text.starts_with(&words), "{text}");
}

#[tokio::test]
async fn a_driver_that_accepts_nobody_any_more_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("csi.sock");
    let socket = tokio::net::UnixSocket::new_stream().unwrap();
    socket.bind(&path).unwrap();
    let _listener = socket.listen(1).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = tokio::net::UnixStream::connect(&path).await {
        waiting.push(stream);
        assert!(waiting.len() < 100, "the queue has no bound");
    }
    let error = dial(&path).await;
    assert!(matches!(error.fault, DialFault::Busy), "{error}");
    assert!(error.to_string().contains("is the driver hanging?"), "{error}");
}

/// User, group, and further groups.
type Us = (u32, u32, &'static [u32]);

/// A pod of the chart: user, group and fsGroup are 65532.
const POD: Us = (65532, 65532, &[65532]);
const MEMBER: Us = (65532, 65532, &[65532, 2000]);
const ROOT: Us = (0, 0, &[]);

const fn file(uid: u32, gid: u32, mode: u32) -> FilePermissions {
    FilePermissions { uid, gid, mode }
}

fn ourselves((uid, gid, groups): Us) -> ProcessIds {
    let groups = groups.to_vec();
    ProcessIds { uid, gid, groups }
}

/// A name, whether it is a directory, its owner, group and mode, who we are, and parts of the message.
type Denied = (&'static str, bool, FilePermissions, Us, &'static [&'static str]);

const DENIED: [Denied; 11] = [
    (
        "made by root for root only",
        false,
        file(0, 0, 0o600),
        POD,
        &[
            "owner 0:0, mode 0600",
            "user 65532, group 65532 ",
            "runAsUser: 0 and runAsNonRoot: false",
            "supplementalGroups: [0]",
            "fsGroup",
        ],
    ),
    (
        "made by another user for itself",
        false,
        file(1001, 1001, 0o755),
        POD,
        &[
            "owner 1001:1001, mode 0755",
            "podSecurityContext.runAsUser: 1001)",
            "mode 0660",
        ],
    ),
    (
        "in an emptyDir with fsGroup, by a driver with umask 022",
        false,
        file(1001, 65532, 0o755),
        POD,
        &["mode 0660 (umask 0007)", "podSecurityContext.runAsUser: 1001"],
    ),
    (
        "for a group that we are not in",
        false,
        file(0, 2000, 0o660),
        POD,
        &["give the pod its group (podSecurityContext.supplementalGroups: [2000])"],
    ),
    (
        "for nobody but we are in the group",
        false,
        file(0, 2000, 0o000),
        MEMBER,
        &["further groups 2000", "have the driver make it with mode 0660"],
    ),
    (
        "our own, without the permission to write",
        false,
        file(65532, 65532, 0o500),
        POD,
        &["mode 0660 (its umask removes the permission)"],
    ),
    (
        "a mode that allows it",
        false,
        file(0, 0, 0o777),
        POD,
        &["SELinux or AppArmor", "seLinuxOptions"],
    ),
    (
        "root without capabilities is a user like another",
        false,
        file(65532, 65532, 0o700),
        ROOT,
        &["user 0, group 0 ", "runAsUser: 65532"],
    ),
    (
        "a directory for its owner",
        true,
        file(0, 0, 0o700),
        POD,
        &[
            "the directory /csi/a/csi.sock has owner 0:0, mode 0700",
            "enter (x)",
            "mode 0770",
            "runAsUser: 0",
        ],
    ),
    (
        "a directory that can be listed and not entered",
        true,
        file(0, 0, 0o754),
        POD,
        &["supplementalGroups: [0]"],
    ),
    (
        "a directory of our group that may only be read",
        true,
        file(0, 65532, 0o740),
        POD,
        &["mode 0770 (umask 0007)"],
    ),
];

#[test]
fn a_permission_that_is_missing_is_told_with_who_has_it_who_we_are_and_the_mend() {
    for (name, directory, file, us, parts) in DENIED {
        let barrier = AccessBarrier {
            path: "/csi/a/csi.sock".into(),
            directory,
            file: Some(file),
            ourselves: Some(ourselves(us)),
        };
        let text = barrier.to_string();
        for part in parts {
            assert!(text.contains(part), "{name}: no {part:?} in {text}");
        }
        // With the path before it and the time of the next try behind it.
        assert!(text.len() < MAX_MESSAGE_BYTES - 300, "{name}: {}", text.len());
    }
}

#[test]
fn what_cannot_be_seen_is_said_so() {
    let nothing = AccessBarrier {
        path: "/csi/csi.sock".into(),
        directory: false,
        file: None,
        ourselves: Some(ourselves(POD)),
    };
    let text = nothing.to_string();
    assert!(text.contains("cannot be seen by the operator's user"), "{text}");
}

#[test]
fn the_kernel_tells_who_we_are() {
    let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n";
    let expected = ProcessIds {
        uid: 4,
        gid: 8,
        groups: vec![9, 10],
    };
    assert_eq!(ProcessIds::read(status), Some(expected));
    assert_eq!(ProcessIds::read("Uid:\t1"), None);
    let folder = tempfile::tempdir().unwrap();
    let ourselves = ProcessIds::of_this_process().unwrap();
    let made = FilePermissions::from(&std::fs::metadata(folder.path()).unwrap());
    assert_eq!(ourselves.uid, made.uid);
}
