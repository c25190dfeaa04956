//! P4 with copies that are not as the objects are any more; and how often the worlds by chance come to what the properties are
//! about.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::api_server::apply;
use super::properties::{check_others, decided, object, ours, write_of};
use super::strategies::{attachments, contexts, failures, volumes, worlds};
use super::world::{DecideModel, now};
use crate::decide::patch::{PatchType, Write, WriteTarget};
use crate::decide::{self, Action, Outcome, SecretState, observe};

/// What became of an object since the copy was made that a write is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    /// Others wrote on it, but nothing that is ours.
    Noted,
    /// It has another content.
    Changed,
    /// It went, and another one of the same content has its name.
    Replaced,
}

fn since() -> impl Strategy<Value = Since> {
    select(vec![Since::Noted, Since::Changed, Since::Changed, Since::Replaced])
}

impl Since {
    /// The object of now; `other` is what it may have been changed to.
    fn then(self, copy: &Value, other: &Value) -> Value {
        let mut object = if self == Self::Changed { other } else { copy }.clone();
        object["metadata"]["resourceVersion"] = json!("2");
        match self {
            Self::Noted => object["metadata"]["labels"] = json!({"someone/else": "label"}),
            Self::Changed => {}
            Self::Replaced => object["metadata"]["uid"] = json!("another-uid"),
        }
        object
    }
}

/// Whether something is tested of an object before it is written.
fn is_tested(write: &Write, path: &str) -> bool {
    match write.form {
        PatchType::Json => {
            let mut operations = write.body.as_array().into_iter().flatten();
            operations.any(|operation| operation["op"] == "test" && operation["path"] == path)
        }
        PatchType::Merge => write.body.pointer(path).is_some(),
    }
}

/// Each write is about one object, and one that goes by a version is about that version.
fn check_conditions(current: &Value, write: &Write, since: Since) -> Result<(), TestCaseError> {
    prop_assert!(is_tested(write, "/metadata/uid"), "{:?}", write);
    let refused = since == Since::Replaced || is_tested(write, "/metadata/resourceVersion");
    prop_assert!(!refused || apply(current, write).is_err(), "{:?}", write);
    Ok(())
}

/// The name of a decision.
pub fn kind_of(action: &Action<'_>) -> String {
    let text = format!("{action:?}");
    text.split(['(', ' ', '{']).next().unwrap_or_default().to_owned()
}

/// What is written first in a world, and the decision to.
fn written(world: &DecideModel) -> Option<(String, Write)> {
    decided(world, SecretState::Loaded, |action, _| {
        Some((kind_of(action), write_of(action)?))
    })
}

/// The object of now that a write meets.
fn met(world: &DecideModel, write: &Write, since: Since, attachment: &Value, volume: &Value) -> Value {
    let other = match write.target {
        WriteTarget::Volume(_) => volume,
        _ => attachment,
    };
    since.then(object(world, &write.target), other)
}

/// A write from a copy is refused by the object of now, or does what its decision means.
fn check_stale(current: &Value, meaning: &str, write: &Write, since: Since) -> Result<(), TestCaseError> {
    check_conditions(current, write, since)?;
    let Ok(after) = apply(current, write) else {
        return Ok(());
    };
    check_others(current, &after)?;
    match meaning {
        "ProtectVolume" => prop_assert_eq!(ours(&after), 1),
        "Claim" => prop_assert!(false, "a claim is for the object as it was read"),
        "Release" => prop_assert_eq!(ours(&after), 0),
        "MarkAttached" => prop_assert_eq!(&after["status"]["attached"], &json!(true)),
        other => prop_assert!(false, "{} writes nothing", other),
    }
    Ok(())
}

proptest! {
    /// P4 with a stale copy: the write is refused, or does to the object of now what it was meant to do.
    #[test]
    fn stale_writes_do_no_harm(world in worlds(), other in attachments(), other_volume in volumes(), since in since()) {
        let Some((meaning, write)) = written(&world) else { return Ok(()) };
        let current = met(&world, &write, since, &other.0, &other_volume.0);
        check_stale(&current, &meaning, &write, since)?;
    }

    /// P4 for results, whatever they are: also from a stale copy.
    #[test]
    fn results_touch_what_is_ours(
        world in worlds(), other in attachments(), context in contexts(), failure in failures(), since in since()
    ) {
        let snapshot = world.snapshot().unwrap();
        let observed = observe(&snapshot, &world.driver, &world.policy, SecretState::Loaded);
        let outcomes = [
            Outcome::Published(context.into()),
            Outcome::Unpublished,
            Outcome::AttachFailed(failure.clone()),
            Outcome::DetachFailed(failure),
        ];
        for outcome in outcomes {
            for write in decide::settle(&observed, &outcome, now()) {
                let current = met(&world, &write, since, &other.0, &Value::Null);
                check_conditions(&current, &write, since)?;
                if let Ok(after) = apply(&current, &write) {
                    check_others(&current, &after)?;
                    for error in ["attachError", "detachError"] {
                        let message = after["status"][error]["message"].as_str().unwrap_or_default();
                        prop_assert!(message.len() <= decide::MAX_ERROR_BYTES);
                    }
                }
            }
        }
    }
}

/// The properties are about what a world may come to; each of it is come to, often enough for them to mean something.
#[test]
fn the_worlds_reach_what_the_properties_are_about() {
    const DRAWN: usize = 2_000;
    let mut runner = TestRunner::deterministic();
    let mut draw = || {
        let drawn = (worlds(), attachments(), volumes(), since()).new_tree(&mut runner);
        drawn.expect("it can be drawn").current()
    };
    let mut reached: BTreeMap<String, usize> = BTreeMap::new();
    let mut count = |what: String| *reached.entry(what).or_default() += 1;
    for _ in 0..DRAWN {
        let (mut world, other, other_volume, since) = draw();
        if let Some((meaning, write)) = written(&world) {
            let current = met(&world, &write, since, &other.0, &other_volume.0);
            let accepted = if apply(&current, &write).is_ok() {
                "accepted"
            } else {
                "refused"
            };
            count(format!("{meaning} from a stale copy, {accepted}"));
        }
        count(decided(&world, SecretState::Loaded, |action, _| kind_of(action)));
        world.advance();
        let then = decided(&world, SecretState::Loaded, |action, _| kind_of(action));
        count(format!("then {then}"));
    }
    // A property draws 256 worlds: one in a hundred is met at least once in nearly every run.
    for what in [
        "ProtectVolume",
        "Claim",
        "then Publish",
        "Unpublish",
        "MarkAttached",
        "Release",
        "ProtectVolume from a stale copy, accepted",
        "ProtectVolume from a stale copy, refused",
        "Claim from a stale copy, refused",
        "MarkAttached from a stale copy, refused",
        "Release from a stale copy, accepted",
        "Release from a stale copy, refused",
    ] {
        let times = reached.get(what).copied().unwrap_or_default();
        assert!(times >= DRAWN / 100, "{what}: {times} times of {DRAWN}; {reached:#?}");
    }
}
