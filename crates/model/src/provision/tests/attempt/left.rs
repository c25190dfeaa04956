//! Volumes that may be left though the driver has ended the call for them: no claim goes without a word of its volume.

use serde_json::json;

use super::super::builders::NAME;
use super::{Cluster, Play, UNWANTED};
use crate::provision::attempt::{ClaimNote, Verdict};
use crate::provision::{LeakProtection, RolePhase};

/// `INVALID_ARGUMENT`, `NOT_FOUND`, `OUT_OF_RANGE`, `DATA_LOSS`: these end an open call at once.
const ENDS: [i32; 4] = [3, 5, 11, 15];

/// After calls that were answered with these codes.
fn after(codes: &[i32]) -> Play {
    let mut play = Play::of(Cluster::new());
    for code in codes {
        play.call(Some(*code), |_| {});
    }
    play
}

fn leaks(play: &Play) -> usize {
    play.told(|note| matches!(note, ClaimNote::PossiblyLeaked(name, _) if **name == *NAME))
}

/// How often it is told when the claim is deleted.
fn leaks_at_the_end(mut play: Play) -> usize {
    play.cluster.delete();
    play.attempt(|_, _| None);
    assert!(!play.cluster.carries_marker(), "nobody waits for a person");
    leaks(&play)
}

/// The call timed out, and the volume is there; then a key of the Secret goes, or the driver starts with other settings.
#[test]
fn the_volume_of_an_open_call_that_is_refused_is_told_when_its_claim_goes() {
    for code in ENDS {
        for make_unwanted in UNWANTED {
            for is_during_the_call in [true, false] {
                let mut play = after(&[4]);
                play.call(Some(code), |cluster| {
                    if is_during_the_call {
                        make_unwanted(cluster);
                    }
                });
                if !is_during_the_call {
                    assert!(play.cluster.carries_marker(), "{code}");
                    assert_eq!(leaks(&play), 0, "it is asked for again: {code}");
                    make_unwanted(&mut play.cluster);
                    play.attempt(|_, _| None);
                }
                assert!(!play.cluster.carries_marker(), "{code}");
                assert_eq!(leaks(&play), 1, "{code}");
                assert_eq!(play.attempt(|_, _| None), Verdict::Done);
                assert_eq!(leaks(&play), 1, "once: {code}");
            }
        }
    }
}

/// ALREADY_EXISTS: the driver fails in the second of two steps, and does not take the first one back.
#[test]
fn a_volume_is_told_where_something_says_that_it_may_be_there() {
    let rows: [(&[i32], usize); 8] = [
        (&[3], 0),
        (&[5], 0),
        (&[13], 0),
        (&[4, 13, 13], 0),
        (&[6], 1),
        (&[13, 6], 1),
        // These do not say that it is gone.
        (&[13, 6, 13], 1),
        (&[4, 5, 5], 1),
    ];
    for (codes, wanted) in rows {
        assert_eq!(leaks_at_the_end(after(codes)), wanted, "{codes:?}");
    }
    // Nothing says that somebody else has called.
    for code in ENDS {
        let mut play = after(&[]);
        play.memory.expect_calls_of_others();
        play.call(Some(code), |_| {});
        assert_eq!(leaks_at_the_end(play), 0, "{code}");
    }
}

#[test]
fn a_volume_that_is_found_after_all_is_not_told() {
    let mut play = after(&[4, 3]);
    play.cluster.epoch += 1;
    play.attempt(|_, _| None);
    assert_eq!(play.saved(), 1);
    play.cluster.set("/spec/volumeName", json!(NAME));
    play.cluster.set("/status/phase", json!("Bound"));
    assert_eq!(play.attempt(|_, _| None), Verdict::Done);
    assert_eq!((play.cluster.carries_marker(), leaks(&play)), (false, 0));
}

/// The marker stays while the claim is held, or waits for its class, and says it to the next process.
#[test]
fn another_process_tells_it_as_well() {
    for code in ENDS {
        let mut play = after(&[4, code]);
        let class = play.cluster.class.take();
        play.attempt(|_, _| None);
        assert!(play.cluster.carries_marker(), "{code}");
        play.cluster.class = class;
        play.restart("2-3-csi.test");
        play.call(Some(code), |_| {});
        assert_eq!(leaks_at_the_end(play), 1, "{code}");
    }
}

/// The marker goes with the role, and nothing else would tell the next one.
#[test]
fn a_role_that_ends_tells_it() {
    for role in [RolePhase::Stopping, RolePhase::Disabled] {
        let mut play = after(&[4, 5]);
        play.cluster.role = role;
        assert_eq!(play.attempt(|_, _| None), Verdict::Done);
        assert_eq!((play.cluster.carries_marker(), leaks(&play)), (false, 1), "{role:?}");
    }
}

#[test]
fn it_is_told_of_a_claim_that_goes_without_a_marker() {
    let mut play = Play::of(Cluster::new());
    play.cluster.policy.leak_protection = LeakProtection::Never;
    play.call(Some(6), |_| {});
    play.cluster.claim = None;
    assert_eq!(play.attempt(|_, _| None), Verdict::Done);
    assert_eq!(leaks(&play), 1);
}
