//! Rules for the sources that no compiler keeps.

use std::path::{Path, PathBuf};

const LONGEST: usize = 400;
/// Files that are longer for a reason, with the reason.
const LONGER: [(&str, &str); 2] = [
    ("src/driver/simulation/mutants.rs", "the table of wrong operators"),
    ("src/telemetry/otel_env/tests.rs", "its rows"),
];

/// What gives the outside world away.
const FORBIDDEN: [&str; 8] = [
    "tokio",
    "kube::Client",
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "std::fs",
    "std::env",
    "async ",
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

/// All of the operator's sources, by their paths from the root.
fn all() -> impl Iterator<Item = (String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = ["src", "crates"]
        .into_iter()
        .flat_map(|folder| sources(&root.join(folder)));
    found.map(move |path| (path.strip_prefix(root).unwrap().display().to_string(), path))
}

/// What the supervisor decides. The decisions about objects are a crate, whose dependencies keep them pure.
#[test]
fn what_the_supervisor_decides_is_pure() {
    for file in ["src/supervisor/plan.rs", "src/supervisor/status.rs"] {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        for word in FORBIDDEN {
            assert!(!text.contains(word), "{file} uses {word}");
        }
    }
}

#[test]
fn files_are_short() {
    for (name, path) in all() {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        let excepted = LONGER.iter().any(|(longer, _)| *longer == name);
        assert_eq!(lines > LONGEST, excepted, "{name} has {lines} lines");
    }
}
