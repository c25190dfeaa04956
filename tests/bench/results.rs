//! The results of all scenes as JSON: written after each scene, so that a run that is ended half way leaves what it has.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::machine::{self, Machine};
use super::support::{Error, Result, of_repository};
use super::table::Row;

/// What one scene gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SceneResult {
    pub scene: String,
    pub about: String,
    /// The commit that was measured.
    pub revision: String,
    /// When it ended, how long it took, and the load average before it and after it.
    pub ended: String,
    pub seconds: u64,
    pub load: [String; 2],
    pub rows: Vec<Row>,
    /// Why there are no rows.
    pub failed: Option<String>,
}

/// Everything in the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub machine: Machine,
    /// Whether the benchmark, and with it the operator unless `OPERATOR_BINARY` names another, was built for release.
    pub release: bool,
    pub scenes: Vec<SceneResult>,
}

/// Where the file is.
pub fn path() -> PathBuf {
    std::env::var_os("BENCH_JSON").map_or_else(|| of_repository("target/bench.json"), PathBuf::from)
}

impl Results {
    /// Those of an earlier run on the same machine, so that a scene can be run again alone, such as after a change that concerns
    /// no other one; else none.
    pub async fn begin() -> Result<Self> {
        let fresh = Self {
            machine: Machine::read().await?,
            release: !cfg!(debug_assertions),
            scenes: Vec::new(),
        };
        let earlier = Self::read().ok();
        Ok(earlier
            .filter(|earlier| (&earlier.machine, earlier.release) == (&fresh.machine, fresh.release))
            .unwrap_or(fresh))
    }

    /// Reads the file.
    pub fn read() -> Result<Self> {
        let path = path();
        let text = fs::read_to_string(&path).map_err(|error| Error::Other(format!("{}: {error}", path.display())))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Takes in a scene in place of an earlier run of it, and writes the file.
    pub fn add(&mut self, result: SceneResult) -> Result<()> {
        match self.scenes.iter_mut().find(|earlier| earlier.scene == result.scene) {
            Some(earlier) => *earlier = result,
            None => self.scenes.push(result),
        }
        let path = path();
        let failed = |error: std::io::Error| Error::Other(format!("{}: {error}", path.display()));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        fs::write(&path, serde_json::to_string_pretty(self)? + "\n").map_err(failed)
    }

    /// The scenes of each revision.
    pub fn revisions(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut revisions = BTreeMap::<_, Vec<_>>::new();
        for scene in &self.scenes {
            revisions.entry(&*scene.revision).or_default().push(&*scene.scene);
        }
        revisions
    }

    /// All rows, in the order of the scenes.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.scenes.iter().flat_map(|scene| &scene.rows)
    }
}

impl SceneResult {
    pub fn begin(scene: &str, about: &str) -> Self {
        Self {
            scene: scene.to_owned(),
            about: about.to_owned(),
            revision: revision(),
            ended: String::new(),
            seconds: 0,
            load: [machine::load(), String::new()],
            rows: Vec::new(),
            failed: None,
        }
    }

    pub fn end(mut self, outcome: Result<Vec<Row>>, took: std::time::Duration) -> Self {
        self.ended = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.seconds = took.as_secs();
        self.load[1] = machine::load();
        match outcome {
            Ok(rows) => self.rows = rows,
            Err(error) => self.failed = Some(error.to_string()),
        }
        self
    }
}

/// The commit, with a mark when something is not committed.
fn revision() -> String {
    let git = std::process::Command::new("git")
        .args([
            "-C",
            &of_repository("").display().to_string(),
            "describe",
            "--always",
            "--dirty",
        ])
        .output();
    git.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}
