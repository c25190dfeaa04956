//! Which changes of a VolumeAttachment end its backoff: section 8.6 of the sidecar's behaviour, 8 scenarios.
//!
//! The sidecar compares two copies and leaves errors out; here the fingerprint of what decides is compared, which leaves
//! out everything else as well.

use serde_json::{Value, json};

use super::builders::{Va, attachment};
use super::table::tally;
use super::world::ready;

struct Row {
    name: &'static str,
    old: Va,
    new: Va,
    /// Whether the sidecar queues the object.
    sidecar: bool,
    /// Whether we do, and why if that differs.
    ours: bool,
    why: &'static str,
}

fn row(name: &'static str, old: &Va, new: &Va, sidecar: bool) -> Row {
    Row {
        name,
        old: old.clone(),
        new: new.clone(),
        sidecar,
        ours: sidecar,
        why: "",
    }
}

impl Row {
    fn but(self, why: &'static str) -> Self {
        Self {
            ours: !self.sidecar,
            why,
            ..self
        }
    }
}

fn error(text: &str) -> Value {
    json!({"message": text, "time": "2026-01-01T00:00:00Z"})
}

fn rows() -> Vec<Row> {
    let detach = |va: Va, text| va.set("/status/detachError", error(text));
    let attach = |va: Va, text| va.set("/status/attachError", error(text));
    let newer = |va: &Va| va.clone().set("/metadata/resourceVersion", "2");
    let plain = attachment();
    let attach_failed = attach(plain.clone(), "mock error1");
    let both = detach(attach_failed.clone(), "mock error1");
    vec![
        row("periodic sync", &both, &both, true)
            .but("every retry has its own time and its own wake-ups; a resync would end all backoffs at once"),
        row("changed spec", &both, &newer(&both).set("/spec/attacher", "2"), true),
        row(
            "changed metadata",
            &both,
            &newer(&both).annotation("some/key", "value"),
            true,
        )
        .but("an annotation that decides nothing cannot mend anything; retry-now can"),
        row("added attachError", &both, &attach(newer(&both), "mock error2"), false),
        row("added detachError", &both, &detach(newer(&both), "mock error2"), false),
        row(
            "changed attachError",
            &plain,
            &detach(attach(newer(&plain), "mock error2"), "mock error1"),
            false,
        ),
        row(
            "changed detachError",
            &attach_failed,
            &detach(newer(&attach_failed), "mock error2"),
            false,
        ),
        row(
            "appended managedFields",
            &both,
            &newer(&both).set("/metadata/managedFields", json!([{"manager": "another"}])),
            false,
        ),
    ]
}

fn fingerprint(va: &Va) -> u64 {
    ready().va(va.clone()).fingerprint()
}

#[test]
fn changes_that_end_a_backoff() {
    let rows = rows();
    tally("8.6", "update filter", rows.len());
    for row in rows {
        let queued = fingerprint(&row.old) != fingerprint(&row.new);
        assert_eq!(queued, row.ours, "{}", row.name);
        assert_eq!(row.sidecar != row.ours, !row.why.is_empty(), "{}", row.name);
    }
}

/// What a person sets to ask for a try at once.
#[test]
fn retry_now_ends_a_backoff() {
    let key = crate::api::names::RETRY_NOW_ANNOTATION;
    let asked = attachment().annotation(key, "1");
    assert_ne!(fingerprint(&attachment()), fingerprint(&asked));
    assert_ne!(fingerprint(&asked), fingerprint(&attachment().annotation(key, "2")));
}
