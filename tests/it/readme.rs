//! The README tells of every flag, and of no other.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The flags that stand at the beginning of a line, after this prefix.
fn flags<'t>(text: &'t str, prefix: &str) -> BTreeSet<&'t str> {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix(prefix));
    let names = lines.filter_map(|line| line.split([' ', '`', '=']).next());
    names.filter(|name| name.starts_with("--")).collect()
}

#[test]
fn the_table_of_flags_is_that_of_the_program() {
    let help = Command::new(env!("CARGO_BIN_EXE_csi-attacher-operator"))
        .arg("--help")
        .output();
    let help = String::from_utf8(help.expect("the program starts").stdout).expect("text");
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"));
    let readme = readme.expect("there is a README");
    let of_program = flags(&help, "");
    assert!(of_program.contains("--kubeconfig"), "{help}");
    assert_eq!(flags(&readme, "| `"), of_program);
}
