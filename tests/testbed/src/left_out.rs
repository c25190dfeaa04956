//! Cases that this machine does not allow to be tried. They are told at the end of `make test`, and are failures in CI.

use std::fs::OpenOptions;
use std::io::Write;

use super::error::{Context, Error, Result};

/// The file to which each case adds a line; libtest shows nothing of a test that passes.
pub const FILE: &str = "LEFT_OUT";
/// Set where a case that was not tried is a failure.
pub const CI: &str = "CI";

/// Tells that a test leaves out a case, and why. An error under CI.
pub fn left_out(case: &str, why: &str) -> Result<()> {
    let set = |name| std::env::var(name).unwrap_or_default();
    told(case, why, &set(CI), &set(FILE))
}

fn told(case: &str, why: &str, ci: &str, file: &str) -> Result<()> {
    let line = format!("{case}: {why}");
    if ci == "true" {
        return Err(Error::Other(format!("not tried, under CI={ci}: {line}")));
    }
    if file.is_empty() {
        eprintln!("LEFT OUT: {line}");
        return Ok(());
    }
    let opened = OpenOptions::new().create(true).append(true).open(file);
    let mut opened = opened.while_trying(|| format!("open {file}"))?;
    // In one write, so that lines of several tests stay apart.
    opened
        .write_all(format!("{line}\n").as_bytes())
        .while_trying(|| format!("write {file}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_kept_and_fails_under_ci() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("left-out");
        let file = path.display().to_string();
        told("one", "not root", "", &file).unwrap();
        told("two", "no network", "false", &file).unwrap();
        let lines = "one: not root\ntwo: no network\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines);
        let error = told("three", "not root", "true", &file).unwrap_err().to_string();
        assert!(error.contains("three: not root"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines);
        told("four", "not root", "", "").unwrap();
        assert!(told("five", "not root", "", "/nowhere/at/all").is_err());
    }
}
