//! Proves what `tests/controlplane/build` says when it cannot build, and that it takes programs it is given.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

/// Runs the script with an empty cache and with a PATH on which there is everything it needs but Go.
fn build(sandbox: &Path, assets: Option<&Path>, args: &[&str]) -> Output {
    let bin = sandbox.join("bin");
    fs::create_dir_all(&bin).expect("the folder can be made");
    for tool in [
        "bash",
        "env",
        "awk",
        "cat",
        "cut",
        "dirname",
        "sha256sum",
        "shasum",
        "mkdir",
        "flock",
        "rm",
    ] {
        let found = std::env::split_paths(&std::env::var_os("PATH").expect("PATH is set"))
            .map(|folder| folder.join(tool))
            .find(|path| path.exists());
        if let Some(found) = found {
            symlink(found, bin.join(tool)).expect("the link can be made");
        }
    }
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/controlplane/build"));
    command
        .args(args)
        .env("PATH", bin)
        .env("CSI_ATTACHER_CACHE", sandbox.join("cache"))
        .env_remove("KUBEBUILDER_ASSETS");
    if let Some(assets) = assets {
        command.env("KUBEBUILDER_ASSETS", assets);
    }
    command.output().expect("the script starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write_program(folder: &Path, name: &str) {
    let path = folder.join(name);
    fs::write(&path, "#!/bin/sh\n").expect("the file can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("the mode can be set");
}

#[test]
fn without_go_it_names_both_ways_out() {
    let sandbox = tempfile::tempdir().expect("a folder for temporary files");
    let output = build(sandbox.path(), None, &[]);
    assert!(!output.status.success());
    assert_eq!(text(&output.stdout), "");
    let message = text(&output.stderr);
    assert!(message.contains("install Go 1.26"), "{message}");
    assert!(
        message.contains("KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and kubectl"),
        "{message}"
    );
}

#[test]
fn given_programs_win_and_a_missing_one_is_named() {
    let sandbox = tempfile::tempdir().expect("a folder for temporary files");
    let assets = tempfile::tempdir().expect("a folder for temporary files");
    for name in ["etcd", "kubectl"] {
        write_program(assets.path(), name);
    }
    let output = build(sandbox.path(), Some(assets.path()), &["--path", "etcd", "kubectl"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let folder = assets.path().display();
    assert_eq!(text(&output.stdout), format!("{folder}/etcd\n{folder}/kubectl\n"));

    let sandbox = tempfile::tempdir().expect("a folder for temporary files");
    let output = build(sandbox.path(), Some(assets.path()), &["etcd", "kube-apiserver"]);
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).contains("no program 'kube-apiserver' in it"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn an_unknown_component_is_refused() {
    let sandbox = tempfile::tempdir().expect("a folder for temporary files");
    let output = build(sandbox.path(), None, &["kube-attacher"]);
    assert!(!output.status.success());
    assert!(
        text(&output.stderr).contains("no component named 'kube-attacher'"),
        "{}",
        text(&output.stderr)
    );
}
