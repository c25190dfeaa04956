//! Each way in which a path can be no usable socket, and what is told of it.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};

use super::*;
use crate::api::condition::{MAX_MESSAGE_BYTES, Reason};
use crate::api::validated::Endpoint;
use crate::csi::{Connection, CsiClient, DialError};
use crate::telemetry::{Metrics, Span};

/// How dialling this path fails.
async fn dial(path: &Path) -> DialError {
    let client = CsiClient::new(Connection::new(&Endpoint::Unix(path.to_owned())), Metrics::default());
    let limit = std::time::Duration::from_secs(30);
    let called = tokio::time::timeout(limit, client.probe(limit, &Span::disabled())).await;
    called.unwrap().unwrap_err();
    client.connection().dial_error().expect("the dial failed")
}

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
    let owner = FileFacts::from(&std::fs::metadata(at("file")).unwrap());
    let owner = format!("owner {}:{}", owner.uid, owner.gid);
    let too_long = "x".repeat(108);

    let cases: [(&str, Reason, &[&str]); 13] = [
        (
            "gone.sock",
            Reason::SocketMissing,
            &["is the driver running and its socket directory mounted"],
        ),
        (
            "no/gone.sock",
            Reason::SocketMissing,
            &["not even its directory", "drivers.NAME.hostPath", "volumeMounts"],
        ),
        (
            "dangling",
            Reason::SocketMissing,
            &["dangling is a symlink to gone.sock, which is not there"],
        ),
        (
            "dangling-twice",
            Reason::SocketMissing,
            &["dangling is a symlink to gone.sock, which is not there"],
        ),
        (
            "dangling-directory/csi.sock",
            Reason::SocketMissing,
            &["is a symlink to no-directory"],
        ),
        (
            "file",
            Reason::NotASocket,
            &[
                "is a regular file",
                &owner,
                "mode 0640",
                "name the driver's socket in spec.endpoint",
            ],
        ),
        (
            "link-to-file",
            Reason::NotASocket,
            &["is a regular file", &owner, "mode 0640"],
        ),
        (
            "file/csi.sock",
            Reason::NotASocket,
            &["file is a regular file", "so that no socket can be below it"],
        ),
        (
            "directory",
            Reason::NotASocket,
            &["is a directory", &owner, "mode 2750", "name the socket in it"],
        ),
        (
            "deserted",
            Reason::ConnectionRefused,
            &["connection refused; the driver is not listening", &owner, "mode 0755"],
        ),
        (
            "link-to-deserted",
            Reason::ConnectionRefused,
            &["not listening", &owner],
        ),
        ("loop", Reason::DialFailed, &["symbolic links"]),
        (
            &too_long,
            Reason::DialFailed,
            &["bytes are too long", "107", "shorter path"],
        ),
    ];
    for (name, reason, parts) in cases {
        let path = at(name);
        let error = dial(&path).await;
        let text = error.to_string();
        assert_eq!(error.reason(), reason, "{text}");
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        for part in parts {
            assert!(text.contains(part), "{name}: no {part:?} in {text}");
        }
        assert!(text.len() < MAX_MESSAGE_BYTES, "{text}");
    }
    let datagrams = dial(&at("datagrams")).await;
    assert_eq!(datagrams.reason(), Reason::DialFailed, "{datagrams}");
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
    assert!(matches!(error, DialError::Busy { .. }), "{error}");
    assert!(error.to_string().contains("does the driver hang?"), "{error}");
}

/// A pod of the chart: user, group and fsGroup are 65532.
fn pod() -> Ourselves {
    Ourselves {
        uid: 65532,
        gid: 65532,
        groups: vec![65532],
    }
}

fn barrier(directory: bool, uid: u32, gid: u32, mode: u32, ourselves: Ourselves) -> String {
    let barrier = Barrier {
        path: "/csi/a/csi.sock".into(),
        directory,
        file: Some(FileFacts { uid, gid, mode }),
        ourselves: Some(ourselves),
    };
    barrier.to_string()
}

#[test]
fn a_permission_that_is_missing_is_told_with_who_has_it_who_we_are_and_the_mend() {
    let root = || Ourselves::default();
    let member = || Ourselves {
        groups: vec![65532, 2000],
        ..pod()
    };
    let cases: [(&str, bool, (u32, u32, u32), Ourselves, &[&str]); 11] = [
        (
            "made by root for root only",
            false,
            (0, 0, 0o600),
            pod(),
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
            (1001, 1001, 0o755),
            pod(),
            &[
                "owner 1001:1001, mode 0755",
                "podSecurityContext.runAsUser: 1001)",
                "mode 0660",
            ],
        ),
        (
            "in an emptyDir with fsGroup, by a driver with umask 022",
            false,
            (1001, 65532, 0o755),
            pod(),
            &["mode 0660 (umask 0007)", "podSecurityContext.runAsUser: 1001"],
        ),
        (
            "for a group that we are not in",
            false,
            (0, 2000, 0o660),
            pod(),
            &["give the pod its group (podSecurityContext.supplementalGroups: [2000])"],
        ),
        (
            "for nobody but we are in the group",
            false,
            (0, 2000, 0o000),
            member(),
            &["further groups 2000", "have the driver make it with mode 0660"],
        ),
        (
            "our own, without the right to write",
            false,
            (65532, 65532, 0o500),
            pod(),
            &["mode 0660 (its umask takes the right away)"],
        ),
        (
            "a mode that allows it",
            false,
            (0, 0, 0o777),
            pod(),
            &["SELinux or AppArmor", "seLinuxOptions"],
        ),
        (
            "root without capabilities is a user like another",
            false,
            (65532, 65532, 0o700),
            root(),
            &["user 0, group 0 ", "runAsUser: 65532"],
        ),
        (
            "a directory for its owner",
            true,
            (0, 0, 0o700),
            pod(),
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
            (0, 0, 0o754),
            pod(),
            &["supplementalGroups: [0]"],
        ),
        (
            "a directory of our group that may only be read",
            true,
            (0, 65532, 0o740),
            pod(),
            &["mode 0770 (umask 0007)"],
        ),
    ];
    for (name, directory, (uid, gid, mode), ourselves, parts) in cases {
        let text = barrier(directory, uid, gid, mode, ourselves);
        for part in parts {
            assert!(text.contains(part), "{name}: no {part:?} in {text}");
        }
        // With the path before it and the time of the next try behind it.
        assert!(text.len() < MAX_MESSAGE_BYTES - 300, "{name}: {}", text.len());
    }
}

#[test]
fn what_cannot_be_seen_is_said_so() {
    let nothing = Barrier {
        path: "/csi/csi.sock".into(),
        directory: false,
        file: None,
        ourselves: Some(pod()),
    };
    let text = nothing.to_string();
    assert!(text.contains("cannot be seen by the operator's user"), "{text}");
}

#[test]
fn the_kernel_tells_who_we_are() {
    let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \n";
    let expected = Ourselves {
        uid: 4,
        gid: 8,
        groups: vec![9, 10],
    };
    assert_eq!(Ourselves::read(status), Some(expected));
    assert_eq!(Ourselves::read("Uid:\t1"), None);
    let folder = tempfile::tempdir().unwrap();
    let ourselves = Ourselves::of_this_process().unwrap();
    let made = FileFacts::from(&std::fs::metadata(folder.path()).unwrap());
    assert_eq!(ourselves.uid, made.uid);
}
