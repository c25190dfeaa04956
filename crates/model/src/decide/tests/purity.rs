//! What a list of dependencies cannot say of a pure crate: no clock, no files, no environment, no threads. A test reads the sources.

use std::path::{Path, PathBuf};

/// What of the standard library, and of what it is built with, gives the outside world away.
const FORBIDDEN: [&str; 10] = [
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "Zoned::now",
    "std::env",
    "std::fs",
    "TcpStream",
    "UdpSocket",
    "std::thread",
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

#[test]
fn what_decides_is_pure() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for path in sources(&root) {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        if name.contains("tests") {
            continue;
        }
        seen += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        for word in FORBIDDEN {
            assert!(!text.contains(word), "{name} uses {word}");
        }
    }
    assert!(seen > 50, "the sources are still where they were: {seen}");
}
