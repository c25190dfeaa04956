//! Rows of a table, and how they are checked.

use super::builders::{drop_in, lease};
use crate::explain::{Case, Chain, StepState, Verdict, chain};
use crate::observed::Scene;

/// One line of a table.
pub struct Row {
    pub name: &'static str,
    pub scene: Scene,
    pub case: Case,
    /// What the summary, the error, the next step, or the advice says.
    pub says: &'static [&'static str],
}

pub fn row(name: &'static str, scene: Scene, case: Case, says: &'static [&'static str]) -> Row {
    Row {
        name,
        scene,
        case,
        says,
    }
}

/// Everything that a chain says, in one text.
pub fn all_words(chain: &Chain) -> String {
    serde_json::to_string(chain).unwrap()
}

pub fn play(rows: Vec<Row>) {
    for row in rows {
        let found = chain(&row.scene);
        assert_eq!(found.diagnosis.case, row.case, "{}: {}", row.name, all_words(&found));
        let words = all_words(&found);
        for part in row.says {
            // A text inside of JSON has its quotes escaped.
            let escaped = part.replace('"', "\\\"");
            let is_there = words.contains(part) || words.contains(&escaped);
            assert!(is_there, "{}: {part:?} is not in {words}", row.name);
        }
        check(row.name, &found);
        // A sidecar reads no annotation and no AttacherConfig of ours, and the operator in its place no AttacherConfig.
        let mut scene = row.scene;
        scene.driver.leases = lease("sidecar-0", false, 3);
        no_command_is_in_vain(row.name, &scene, &["attacher retry", "attacher release", " atc "]);
        scene.driver.leases = drop_in();
        no_command_is_in_vain(row.name, &scene, &[" atc "]);
    }
}

fn no_command_is_in_vain(name: &str, scene: &Scene, words: &[&str]) {
    let chain = chain(scene);
    for command in commands(&chain) {
        for word in words {
            assert!(!command.contains(word), "{name}, {:?}: {command}", scene.driver.leases);
        }
    }
    let case = chain.diagnosis.case;
    let of_config = [Case::SecretNotAllowed, Case::ConfigDeleting, Case::LaneSaturated];
    assert!(
        !of_config.contains(&case),
        "{name}, {:?}: {case:?}",
        scene.driver.leases
    );
}

fn commands(chain: &Chain) -> impl Iterator<Item = &str> {
    let advice = chain.diagnosis.advice.iter();
    advice.filter_map(|advice| advice.command.as_deref())
}

/// What deletes, detaches or frees something when it is pasted into a shell.
const DESTROYING: [&str; 9] = [
    " delete",
    " taint",
    " drain",
    " evict",
    " replace",
    " scale",
    "--force",
    "finalizers",
    "--i-know-the-volume-is-not-attached-anywhere",
];

/// A command that `why` prints is pasted by somebody in a hurry: it looks, or it asks a controller that checks first.
pub fn no_command_destroys(name: &str, chain: &Chain) {
    for command in commands(chain) {
        for word in DESTROYING {
            assert!(!command.contains(word), "{name}: {command}");
        }
    }
}

/// What holds of every chain.
fn check(name: &str, chain: &Chain) {
    no_command_destroys(name, chain);
    let blocked = chain
        .steps
        .iter()
        .filter(|step| step.state == StepState::Blocked)
        .count();
    match chain.diagnosis.verdict {
        Verdict::Blocked => {
            assert_eq!(blocked, 1, "{name}: one step is marked");
            assert!(!chain.diagnosis.advice.is_empty(), "{name}: no next step is named");
            let marked = chain.steps.iter().find(|step| step.state == StepState::Blocked);
            let is_of_attacher = marked.is_some_and(|step| step.object.kind == "AttacherConfig");
            let of_others = [
                Case::AttachedTwice,
                Case::VolumeReplaced,
                Case::NodeIdChanged,
                Case::LeftOver,
                Case::InlineLeftOver,
                Case::ForeignFinalizer,
            ];
            let is_of_others = of_others.contains(&chain.diagnosis.case);
            assert!(!(is_of_attacher && is_of_others), "{name}: no attacher resolves this");
        }
        Verdict::Healthy | Verdict::InProgress | Verdict::Unknown => assert_eq!(blocked, 0, "{name}"),
    }
}
