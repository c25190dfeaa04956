//! What holds for whatever is found.

use proptest::prelude::*;

use super::*;

fn any_case() -> impl Strategy<Value = Case> {
    let around = (
        prop_oneof![
            Just(Entry::Registered),
            Just(Entry::WithoutDriver),
            Just(Entry::BlankId),
            Just(Entry::Missing)
        ],
        prop_oneof![Just(None), Just(Some(Found::There)), Just(Some(Found::Gone))],
        prop_oneof![Just("ReadWriteOnce"), Just("ReadWriteMany"), Just("ReadWriteOncePod")],
        prop::option::of(Just("m")),
        prop::option::of(Just("m")),
        prop::option::of(any::<bool>()),
    );
    let own = (
        any::<bool>(),
        any::<bool>(),
        prop::option::of(Just("no")),
        prop::option::of(0..1000_i64),
        0..1000_i64,
        prop::option::of(0..1000_i64),
    );
    (own, around).prop_map(|((attached, claimed, error, deleted, created, written), around)| Case {
        name: "va".to_owned(),
        attached,
        claimed,
        error,
        deleted,
        created,
        node: around.0,
        volume: around.1,
        modes: vec![around.2],
        attached_at: around.3,
        wanted_at: around.4,
        attach_required: around.5,
        written_by_another: written,
        leads_since: Some(0),
    })
}

fn cases() -> impl Strategy<Value = Vec<Case>> {
    prop::collection::vec(any_case(), 1..8).prop_map(|mut cases| {
        for (number, case) in cases.iter_mut().enumerate() {
            case.name = format!("va-{number}");
        }
        cases
    })
}

/// Nothing about it or around it is wrong, whatever its age.
fn is_well(case: &Case) -> bool {
    case.attached
        && case.deleted.is_none()
        && case.node == Entry::Registered
        && case.volume != Some(Found::Gone)
        && case.attached_at.is_none()
        && case.wanted_at.is_none()
        && case.attach_required != Some(false)
        && case.written_by_another.is_none()
}

proptest! {
    #[test]
    fn nothing_is_said_against_a_healthy_attachment(case in any_case(), now in 0..100_000_i64) {
        if is_well(&case) {
            prop_assert_eq!(case.kinds(now), vec![]);
        }
        // In its first minutes nothing is stuck, and what leaves is only asked whether it does.
        let kinds = case.kinds(now);
        let since = case.deleted.unwrap_or(case.created);
        if now - since <= 300 {
            prop_assert!(!kinds.iter().any(|kind| kind.is_stuck()), "{:?}", kinds);
        }
        if case.deleted.is_some() {
            let allowed = [FindingKind::DetachStuck, FindingKind::OtherAttacher];
            prop_assert!(kinds.iter().all(|kind| allowed.contains(kind)), "{:?}", kinds);
        }
    }

    #[test]
    fn time_alone_ends_no_finding_and_begins_only_what_lasts_too_long(
        cases in cases(), steps in prop::collection::vec(0..400_i64, 1..6)
    ) {
        let mut history = FindingHistory::default();
        let mut now = 1000;
        let mut before = pass(&mut history, &cases, now);
        for step in steps {
            now += step;
            let next = pass(&mut history, &cases, now);
            // A write says for ten minutes that another attacher is there.
            let lasting = FindingKind::ALL.iter().filter(|kind| **kind != FindingKind::OtherAttacher);
            for kind in lasting {
                prop_assert!(next.0.count(*kind) >= before.0.count(*kind), "{:?} went away by itself", kind);
            }
            if step == 0 {
                prop_assert_eq!(&next.0, &before.0);
            }
            if before.2 {
                prop_assert_eq!(&next.0, &before.0, "said to last");
            }
            // What is new is a finding, and a finding is new once.
            prop_assert!(next.1.iter().all(|new| next.0.count(new.kind) > 0));
            before = next;
        }
        let last = pass(&mut history, &cases, now);
        prop_assert_eq!(last.1, vec![]);
    }

    #[test]
    fn a_finding_ends_when_its_cause_does(cases in cases(), which in 0..8_usize) {
        let mut history = FindingHistory::default();
        for now in [1000, 2000, 3000] {
            pass(&mut history, &cases, now);
        }
        let full = pass(&mut history, &cases, 3000).0;
        let mut mended = cases.clone();
        let at = which % mended.len();
        let broken = mended[at].clone();
        mended[at] = Case { name: broken.name.clone(), ..well() };
        let rest = pass(&mut history, &mended, 3000).0;
        let own = broken.kinds(3000);
        for kind in FindingKind::ALL {
            prop_assert_eq!(rest.count(*kind) + usize::from(own.contains(kind)), full.count(*kind), "{:?}", kind);
        }
    }
}
