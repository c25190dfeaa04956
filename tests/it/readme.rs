//! The README is for newcomers: short, and what it tells to run is what is run. `documents` holds its names, links and examples
//! against the code, as those of all documents.

use std::path::Path;

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    text.expect("the file can be read")
}

#[test]
fn the_command_for_tests_is_what_ci_runs() {
    let readme = read("README.md");
    let commands: Vec<&str> = readme.lines().filter(|line| line.starts_with("make ")).collect();
    let named = |target: &str| {
        commands
            .iter()
            .any(|line| line.split_whitespace().nth(1) == Some(target))
    };
    assert!(named("demo") && named("test"), "{commands:?}");
    let ci = read(".ci/run");
    for step in ["\nstep make test\n", "\nstep make demo ONCE=1"] {
        assert!(ci.contains(step), ".ci/run has no {step:?}");
    }
    // What make test is, is told beside the command.
    let told = commands
        .iter()
        .find(|line| line.starts_with("make test"))
        .copied()
        .unwrap_or_default();
    for part in [
        "format",
        "lints",
        "unit",
        "integration",
        "conformance of the mock driver",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn it_is_read_in_five_minutes() {
    let lines = read("README.md").lines().count();
    assert!(lines < 200, "the README has {lines} lines; docs/ has room for more");
}

/// The chart's own README tells the same command.
#[test]
fn the_command_to_install_is_that_of_the_chart() {
    let command = |text: &str| {
        let line = text
            .lines()
            .map(|line| line.trim_start_matches("$ "))
            .find(|line| line.starts_with("helm install "));
        line.map(|line| line.trim_end_matches(" --wait").to_owned())
    };
    let (ours, charts) = (
        command(&read("README.md")),
        command(&read("charts/csi-attacher-operator/README.md")),
    );
    assert!(ours.is_some());
    assert_eq!(ours, charts);
}
