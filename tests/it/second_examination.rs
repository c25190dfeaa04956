//! What `tests/integration` does when tests fail: a stand-in for cargo fails as it is told.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The status, how often cargo was called, and what was told.
fn examined(folder: &Path, settings: &[(&str, &str)]) -> (Option<i32>, usize, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let [runs, told] = ["runs", "told"].map(|name| folder.join(name));
    for file in [&runs, &told] {
        fs::write(file, "").unwrap();
    }
    let output = Command::new(root.join("tests/integration"))
        .envs(settings.iter().copied())
        // A file, as a program that was only just written may be "busy" while other tests start theirs.
        .env("CARGO", root.join("tests/it/second_examination/cargo"))
        .env("RUNS", &runs)
        .env("FAILED_AT_FIRST", &told)
        .output()
        .unwrap();
    let told = fs::read_to_string(told).unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for name in told.lines() {
        assert!(
            text.contains(&format!("!!! FAILED AT FIRST, and passed alone 3 times: {name}")),
            "{text}"
        );
    }
    let runs = fs::read_to_string(runs).unwrap().lines().count();
    (output.status.code(), runs, told)
}

#[test]
fn what_fails_is_examined_alone_and_told() {
    type Row<'r> = (&'r [(&'r str, &'r str)], Option<i32>, usize, &'r str);
    let folder = tempfile::tempdir().unwrap();
    let rows: [Row<'_>; 7] = [
        (&[("FAIL", "")], Some(0), 1, ""),
        (&[("FAIL", "a::test")], Some(0), 4, "a::test\n"),
        (&[("FAIL", "a::test b::test_2")], Some(0), 7, "a::test\nb::test_2\n"),
        // Too many.
        (&[("FAIL", "a b c")], Some(101), 1, ""),
        // It fails again, the first time or the last.
        (&[("FAIL", "a::test"), ("AGAIN", "2")], Some(101), 2, ""),
        (&[("FAIL", "a::test"), ("AGAIN", "4")], Some(101), 4, ""),
        // Nothing was examined.
        (&[("FAIL", "a::test"), ("PASSED", "0")], Some(1), 2, ""),
    ];
    for (settings, status, runs, told) in rows {
        let expected = (status, runs, told.to_owned());
        assert_eq!(examined(folder.path(), settings), expected, "{settings:?}");
    }
}
