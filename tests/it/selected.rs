//! What `tests/selected` does when words select no test: a stand-in for cargo has the tests that it is told.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The status, and with which arguments cargo ran tests.
fn run(folder: &Path, tests: &str, status: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let runs = folder.join("runs");
    fs::write(&runs, "").unwrap();
    let output = Command::new(root.join("tests/selected"))
        // A file, as a program that was only just written may be "busy" while other tests start theirs.
        .arg(root.join("tests/it/selected/cargo"))
        .args(arguments)
        .envs([("TESTS", tests), ("STATUS", status)])
        .env("RUNS", &runs)
        .output()
        .unwrap();
    (
        output.status.code(),
        fs::read_to_string(runs).unwrap().trim().to_owned(),
    )
}

#[test]
fn each_word_selects_a_test_or_nothing_runs() {
    type Row<'r> = (&'r str, &'r [&'r str], Option<i32>, bool);
    let folder = tempfile::tempdir().unwrap();
    let rows: [Row<'_>; 7] = [
        ("a::one b::two", &["test", "--", "--nocapture"], Some(0), true),
        (
            "a::one b::two",
            &["test", "--", "--nocapture", "a::", "b::"],
            Some(0),
            true,
        ),
        ("a::one b::two", &["test", "--", "a::", "c::"], Some(1), false),
        ("a::one b::two", &["test", "--", "c::", "a::"], Some(1), false),
        // A dot is no wildcard.
        ("a::one", &["test", "--", "a..one"], Some(1), false),
        ("", &["test", "--"], Some(1), false),
        ("a::one", &["test", "a::one"], Some(2), false),
    ];
    for (tests, arguments, status, runs) in rows {
        let called = if runs { arguments.join(" ") } else { String::new() };
        assert_eq!(
            run(folder.path(), tests, "0", arguments),
            (status, called),
            "{tests:?} {arguments:?}"
        );
    }
    let (status, _) = run(folder.path(), "a::one", "101", &["test", "--", "a::"]);
    assert_eq!(status, Some(101), "a test that fails");
}

/// What the Makefile selects by words goes by that script, all of it.
#[test]
fn no_target_selects_tests_without_it() {
    let makefile = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Makefile")).unwrap();
    let whole = makefile.replace("\\\n", " ");
    let tests: Vec<&str> = whole.lines().filter(|line| line.contains("$(CARGO) test")).collect();
    let selects = |line: &&&str| {
        let words = line.split_once(" -- ").map(|(_, behind)| behind).unwrap_or_default();
        words.split_whitespace().any(|word| !word.starts_with('-'))
    };
    // `chaos` has a harness of its own.
    let selecting: Vec<_> = tests
        .iter()
        .filter(selects)
        .filter(|line| !line.contains("--test chaos"))
        .collect();
    assert!(selecting.len() >= 7, "{tests:#?}");
    for line in selecting {
        assert!(line.contains("tests/selected $(CARGO)"), "{line}");
    }
    for line in tests {
        let before = line
            .split_once("$(CARGO) test")
            .map(|(_, behind)| behind)
            .unwrap_or_default();
        let before = before.split(" -- ").next().unwrap_or_default();
        assert!(!before.contains("::"), "a filter before the --: {line}");
    }
}
