//! Merging of conditions.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use proptest::prelude::*;

use crate::api::condition::{
    ConditionReason, ConditionStatus, ConditionType, ConditionUpdate, MAX_MESSAGE_BYTES, merge, shorten_message,
    truncate_to_seconds,
};

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn ready(holds: bool, reason: ConditionReason) -> ConditionUpdate {
    ConditionUpdate::new(ConditionType::Ready, holds, reason, "because")
}

/// With an update at this hour of a day.
fn updated(current: &[Condition], update: ConditionUpdate, generation: i64, hour: u8) -> Vec<Condition> {
    let time = at(&format!("2026-11-01T{hour}:00:00Z"));
    merge(current, &[update], Some(generation), time)
}

#[test]
fn a_new_condition_gets_the_time_and_the_generation() {
    let merged = merge(
        &[],
        &[ready(true, ConditionReason::Running)],
        Some(3),
        at("2026-11-01T10:00:00.987654321Z"),
    );
    assert_eq!(
        serde_json::to_value(&merged).expect("writable"),
        serde_json::json!([{
            "type": "Ready", "status": "True", "reason": "Running", "message": "because",
            "observedGeneration": 3, "lastTransitionTime": "2026-11-01T10:00:00Z",
        }])
    );
}

#[test]
fn the_transition_time_changes_only_with_the_status() {
    let first = updated(&[], ready(false, ConditionReason::Connecting), 1, 10);
    let same_status = updated(&first, ready(false, ConditionReason::DriverUnreachable), 2, 11);
    assert_eq!(same_status[0].last_transition_time, first[0].last_transition_time);
    assert_eq!(same_status[0].reason, "DriverUnreachable");
    assert_eq!(same_status[0].observed_generation, Some(2));
    let other_status = updated(&same_status, ready(true, ConditionReason::Running), 2, 12);
    assert_eq!(other_status[0].last_transition_time, Time(at("2026-11-01T12:00:00Z")));
    let unknown = ConditionUpdate::new(
        ConditionType::Ready,
        ConditionStatus::Unknown,
        ConditionReason::Syncing,
        "",
    );
    let unknown = updated(&other_status, unknown, 2, 13);
    assert_eq!(
        (unknown[0].status.as_str(), unknown[0].message.as_str()),
        ("Unknown", "")
    );
    assert_eq!(unknown[0].last_transition_time, Time(at("2026-11-01T13:00:00Z")));
}

#[test]
fn merging_the_same_again_changes_nothing_even_after_a_trip_through_json() {
    let updates = [
        ready(true, ConditionReason::Running),
        ConditionUpdate::new(ConditionType::Stalled, false, ConditionReason::NotStalled, ""),
    ];
    let first = merge(&[], &updates, Some(1), at("2026-11-01T10:00:00.5Z"));
    let stored: Vec<Condition> =
        serde_json::from_str(&serde_json::to_string(&first).expect("writable")).expect("readable");
    assert_eq!(stored, first);
    assert_eq!(merge(&stored, &updates, Some(1), at("2026-11-02T10:00:00Z")), first);
}

#[test]
fn other_conditions_stay_in_their_place() {
    let foreign: Condition = serde_json::from_value(serde_json::json!({
        "type": "example.com/Approved", "status": "True", "reason": "ByHand", "message": "",
        "lastTransitionTime": "2020-01-01T00:00:00Z",
    }))
    .expect("a condition");
    let current = updated(
        std::slice::from_ref(&foreign),
        ready(true, ConditionReason::Running),
        1,
        10,
    );
    let stalled = ConditionUpdate::new(
        ConditionType::Stalled,
        true,
        ConditionReason::InvalidSpec,
        "spec.endpoint: …",
    );
    let merged = updated(&current, stalled, 2, 11);
    let types: Vec<&str> = merged.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ["example.com/Approved", "Ready", "Stalled"]);
    assert_eq!(merged[..2], current[..]);
}

#[test]
fn a_duplicate_type_is_dropped_because_the_api_server_would_refuse_it() {
    let one = updated(&[], ready(true, ConditionReason::Running), 1, 10);
    let twice = [one[0].clone(), one[0].clone()];
    assert_eq!(merge(&twice, &[], Some(1), at("2026-11-01T10:00:00Z")), one);
}

#[test]
fn every_reason_is_one_camel_case_word() {
    for reason in ConditionReason::ALL {
        let text = reason.as_str();
        assert!(text.starts_with(|c: char| c.is_ascii_uppercase()), "{text}");
        assert!(text.chars().all(|c| c.is_ascii_alphanumeric()), "{text}");
    }
}

#[test]
fn a_long_message_is_cut_at_a_character() {
    assert_eq!(shorten_message("short"), "short");
    let exact = "x".repeat(MAX_MESSAGE_BYTES);
    assert_eq!(shorten_message(&exact), exact);
    let cut = shorten_message(&"ü".repeat(MAX_MESSAGE_BYTES));
    assert!(
        cut.ends_with("ü…") && cut.len() <= MAX_MESSAGE_BYTES,
        "{} bytes",
        cut.len()
    );
    let update = ConditionUpdate::new(
        ConditionType::Ready,
        false,
        ConditionReason::DriverInvalid,
        "x".repeat(100_000),
    );
    assert_eq!(
        merge(&[], &[update], None, at("2026-11-01T10:00:00Z"))[0].message.len(),
        MAX_MESSAGE_BYTES
    );
}

proptest! {
    #[test]
    fn any_message_is_cut_to_the_limit(message in any::<String>(), times in 1_usize..200) {
        prop_assert!(shorten_message(&message.repeat(times)).len() <= MAX_MESSAGE_BYTES);
    }

    #[test]
    fn any_time_survives_storage(seconds in Timestamp::MIN.as_second()..=Timestamp::MAX.as_second(), nanos in 0..1_000_000_000_i32) {
        let Ok(time) = Timestamp::new(seconds, nanos) else { return Ok(()) };
        let stored = truncate_to_seconds(time);
        prop_assert_eq!(stored.0.subsec_nanosecond(), 0);
        prop_assert!(time.as_second() == stored.0.as_second());
    }
}
