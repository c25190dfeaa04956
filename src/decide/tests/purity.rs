//! What the architecture forbids, kept by a test that reads the sources.

use std::path::{Path, PathBuf};

const LONGEST: usize = 400;
/// Files that are longer for a reason, with the reason.
const LONGER: [(&str, &str); 2] = [
    ("driver/simulation/mutants.rs", "the table of wrong operators"),
    ("telemetry/otel_env/tests.rs", "its rows"),
];

/// What gives the outside world away.
const FORBIDDEN: [&str; 9] = [
    "tokio",
    "kube::Client",
    "kube::client",
    "tonic::transport",
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "std::fs",
    "std::env",
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

#[test]
fn what_decides_is_pure() {
    let pure = [
        "decide/",
        "objects/",
        "supervisor/plan.rs",
        "supervisor/status.rs",
        "api/",
    ];
    let mut seen = 0;
    for path in sources(&root()) {
        let name = name(&path);
        if !pure.iter().any(|prefix| name.starts_with(prefix)) || name.contains("tests") {
            continue;
        }
        seen += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        for word in FORBIDDEN {
            assert!(!text.contains(word), "{name} uses {word}");
        }
        assert!(!text.contains("async "), "{name} is async");
    }
    assert!(seen > 15, "the folders are still where they were: {seen}");
}

#[test]
fn files_are_short() {
    for path in sources(&root()) {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        let name = name(&path);
        let excepted = LONGER.iter().any(|(longer, _)| *longer == name);
        assert_eq!(lines > LONGEST, excepted, "{name} has {lines} lines");
    }
}
