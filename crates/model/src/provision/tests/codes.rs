//! What the answers of the driver mean: each code of CreateVolume in each state, and each code of DeleteVolume.

use std::sync::Arc;

use super::builders::{ClaimWorld, answered_volume, claim_of, plan_of, world};
use super::claim_rows::{new_volume, uncertain};
use super::tally;
use crate::attempt::{CallEnd, LeaseLost};
use crate::decide::Failure;
use crate::provision::{
    AnsweredVolume, CreateErrorClass, CreateOutcome, Creation, Deletion, InvalidAnswer, OrphanVolumePolicy,
    UncertainCall, VolumeFault, answered_meanwhile, create_error, created, delete_answer, deletion_of, going, undone,
};

/// The codes of gRPC but OK, with what external-provisioner makes of them: `b` goes on in the background, `r` is rescheduled when it may
/// be, `f` is final.
const CODES: [(i32, char); 16] = [
    (1, 'b'),
    (2, 'f'),
    (3, 'f'),
    (4, 'b'),
    (5, 'f'),
    (6, 'f'),
    (7, 'f'),
    (8, 'r'),
    (9, 'f'),
    (10, 'b'),
    (11, 'f'),
    (12, 'f'),
    (13, 'f'),
    (14, 'b'),
    (15, 'f'),
    (16, 'f'),
];

fn failure(code: Option<i32>) -> Failure {
    Failure {
        message: "fake error".to_owned(),
        code,
    }
}

pub fn settle(world: &ClaimWorld, before: &Creation, code: Option<i32>) -> (Creation, CreateOutcome) {
    created(before, &plan_of(world), Err(&failure(code)), &claim_of(&world.claim))
}

/// TestProvisionErrorHandling: 16 codes, with and without topology, with and without a selected node.
#[test]
fn each_code_of_a_first_call() {
    let mut rows = 0;
    for (code, wanted) in CODES {
        for (topology, selected) in [(false, false), (false, true), (true, false), (true, true)] {
            rows += 1;
            let mut world = if topology || selected {
                world().delayed()
            } else {
                world()
            };
            world.driver.capabilities.accessibility_constraints = topology;
            if topology && !selected {
                world = world
                    .class("/volumeBindingMode", "Immediate")
                    .annotate("volume.kubernetes.io/selected-node", "");
            }
            let settled = settle(&world.marked(), &Creation::Never, Some(code));
            let is_rescheduled = matches!(settled.1, CreateOutcome::Rescheduled(_));
            assert_eq!(
                is_rescheduled,
                wanted == 'r' && topology && selected,
                "{code} {topology} {selected}"
            );
            let is_uncertain = settled.0.is_uncertain();
            assert_eq!(is_uncertain, wanted == 'b', "{code} {topology} {selected}");
            assert!(is_uncertain || settled.0 == Creation::Refused);
        }
    }
    tally("TestProvisionErrorHandling", rows);
}

#[test]
fn the_class_of_each_code() {
    use CreateErrorClass::{Doubtful, Exhausted, Final, Infeasible, NameInUse, NotAdmitted, Uncertain};
    let classes = [
        (None, Uncertain),
        (Some(-1), Uncertain),
        (Some(0), Uncertain),
        (Some(1), Uncertain),
        (Some(2), Doubtful),
        (Some(3), Infeasible),
        (Some(4), Uncertain),
        (Some(5), Final),
        (Some(6), NameInUse),
        (Some(7), NotAdmitted),
        (Some(8), Exhausted),
        (Some(9), Doubtful),
        (Some(10), Uncertain),
        (Some(11), Final),
        (Some(12), NotAdmitted),
        (Some(13), Doubtful),
        (Some(14), Uncertain),
        (Some(15), Final),
        (Some(16), NotAdmitted),
        (Some(17), Uncertain),
    ];
    for (code, class) in classes {
        assert_eq!(create_error(code), class, "{code:?}");
    }
}

/// What is held is told apart from what is retried soon.
#[test]
fn an_invalid_argument_is_held() {
    let rows = [
        (3, CreateOutcome::Infeasible),
        (9, CreateOutcome::Failed),
        (4, CreateOutcome::Uncertain),
    ];
    for (code, outcome) in &rows {
        assert_eq!(settle(&world(), &Creation::Never, Some(*code)).1, *outcome);
    }
}

/// After a call whose outcome is not known, INTERNAL, UNKNOWN, FAILED_PRECONDITION and RESOURCE_EXHAUSTED, which drivers answer as well while they
/// work on it or take no request, count only at the second time in a row; ALREADY_EXISTS, UNAUTHENTICATED,
/// PERMISSION_DENIED and UNIMPLEMENTED never.
#[test]
fn what_an_answer_says_of_an_earlier_call() {
    let first = uncertain(&world());
    for code in [2, 8, 9, 13] {
        let once = settle(&world(), &first, Some(code));
        assert_eq!(once.1, CreateOutcome::Uncertain);
        let Creation::Uncertain(UncertainCall { doubtful: true, .. }) = &once.0 else {
            panic!("{:?}", once.0)
        };
        for second in [2, code] {
            let wanted = Creation::Refused;
            assert_eq!(settle(&world(), &once.0, Some(second)).0, wanted);
        }
        let between = settle(&world(), &once.0, Some(4));
        assert!(settle(&world(), &between.0, Some(13)).0.is_uncertain());
    }
    let named = settle(&world(), &first, Some(6));
    assert!(named.0.is_uncertain() && named.1 == CreateOutcome::NameInUse);
    assert_eq!(settle(&world(), &Creation::Never, Some(6)).0, Creation::Refused);
    for code in [7, 12, 16] {
        let shut_out = settle(&world(), &first, Some(code));
        assert!(shut_out.0.is_uncertain() && shut_out.1 == CreateOutcome::Uncertain);
        let wanted = Creation::Refused;
        assert_eq!(settle(&world(), &Creation::Never, Some(code)).0, wanted);
    }
    for code in [3, 5] {
        let wanted = Creation::Refused;
        assert_eq!(settle(&world(), &first, Some(code)).0, wanted, "{code}");
    }
    assert!(settle(&world(), &Creation::Refused, None).0.is_uncertain());
}

/// A volume that goes is no answer: the marker and the plan of the call stay. And what is not sent deletes nothing.
#[test]
fn an_answer_that_is_being_deleted_leaves_open_whether_there_is_a_volume() {
    let (world, handle) = (world(), "h".repeat(1_000));
    let plan = plan_of(&world);
    for of in [Some("pv"), None] {
        let failure = going(&handle, of);
        let (known, outcome) = created(&Creation::Never, &plan, Err(&failure), &claim_of(&world.claim));
        assert_eq!(known, Creation::uncertain(plan.clone(), false));
        assert_eq!(outcome, CreateOutcome::Uncertain);
        assert!(failure.message.len() < 600, "{}", failure.message);
        assert_eq!(
            failure.message.contains("PersistentVolume pv (to keep it"),
            of.is_some()
        );
    }
    let unsent = answered_meanwhile(&handle, "pvc-1");
    assert_eq!(
        delete_answer(unsent.code, OrphanVolumePolicy::default()),
        Deletion::NotDeleted
    );
    assert!(unsent.message.contains("pvc-1") && unsent.message.len() < 600);
}

/// A claim that is in deletion, or was put on another node meanwhile, is not scheduled again.
#[test]
fn only_the_node_of_the_call_is_taken_off() {
    let world = world().delayed().marked();
    let plan = plan_of(&world);
    let exhausted =
        |world: &ClaimWorld| created(&Creation::Never, &plan, Err(&failure(Some(8))), &claim_of(&world.claim));
    assert!(matches!(exhausted(&world).1, CreateOutcome::Rescheduled(_)));
    for other in [
        world.clone().deleting(),
        world.clone().bound("static"),
        world.annotate("volume.kubernetes.io/selected-node", "n2"),
    ] {
        assert_eq!(exhausted(&other), (Creation::Refused, CreateOutcome::Failed));
    }
}

fn answer(change: impl FnOnce(&mut AnsweredVolume)) -> (Creation, CreateOutcome) {
    let mut volume = answered_volume();
    change(&mut volume);
    let claim = claim_of(&world().claim);
    created(&Creation::Never, &plan_of(&world()), Ok(Some(volume)), &claim)
}

#[test]
fn answers_with_ok() {
    const GI: i64 = 1 << 30;
    let size = |settled: (Creation, CreateOutcome)| match settled.0 {
        Creation::Created(volume) => (volume.capacity_bytes, volume.fault),
        other => panic!("{other:?}"),
    };
    assert_eq!(size(answer(|_| {})), (GI, None), "0 is not known");
    assert_eq!(size(answer(|volume| volume.capacity_bytes = GI)), (GI, None));
    assert_eq!(size(answer(|volume| volume.capacity_bytes = 2 * GI)), (2 * GI, None));
    let fault = VolumeFault::Undersized { asked: GI, answered: 1 };
    assert_eq!(size(answer(|volume| volume.capacity_bytes = 1)), (1, Some(fault)));
    let wanted = CreateOutcome::Faulty(fault);
    assert_eq!(answer(|volume| volume.capacity_bytes = 1).1, wanted);

    let invalid = |settled: (Creation, CreateOutcome)| {
        assert!(settled.0.is_uncertain());
        match settled.1 {
            CreateOutcome::InvalidAnswer(invalid) => invalid,
            other => panic!("{other:?}"),
        }
    };
    let wanted = InvalidAnswer::EmptyHandle;
    assert_eq!(invalid(answer(|volume| volume.handle = " ".into())), wanted);
    let negative = answer(|volume| volume.capacity_bytes = -1);
    assert!(
        matches!(
            negative.1,
            CreateOutcome::Faulty(VolumeFault::Undersized { answered: -1, .. })
        ),
        "its ID is known: {negative:?}"
    );
    let claim = claim_of(&world().claim);
    let none = created(&Creation::Never, &plan_of(&world()), Ok(None), &claim);
    assert_eq!(invalid(none), InvalidAnswer::NoVolume);
}

#[test]
fn each_code_of_a_deletion() {
    use Deletion::{Deleted, NotDeleted, Uncertain};
    use OrphanVolumePolicy::{Retry, TreatNotFoundAsDeleted};
    assert_eq!(delete_answer(Some(0), Retry), Deleted);
    assert_eq!(delete_answer(None, Retry), Uncertain);
    assert_eq!(delete_answer(Some(17), Retry), Uncertain);
    for (code, kind) in CODES {
        let wanted = if kind == 'b' { Uncertain } else { NotDeleted };
        assert_eq!(delete_answer(Some(code), Retry), wanted, "{code}");
        let lenient = if code == 5 { Deleted } else { wanted };
        assert_eq!(delete_answer(Some(code), TreatNotFoundAsDeleted), lenient, "{code}");
        let failure = Failure {
            message: String::new(),
            code: Some(code),
        };
        let answer = Err(CallEnd::Failed(failure));
        assert_eq!(deletion_of(&answer, TreatNotFoundAsDeleted), lenient, "{code}");
    }
    let lost = |lost: LeaseLost| deletion_of(&Err(CallEnd::LeaseLost(lost)), Retry);
    let ends = [
        deletion_of(&Ok(()), Retry),
        lost(LeaseLost::NotStarted),
        lost(LeaseLost::Cancelled),
    ];
    assert_eq!(ends, [Deleted, NotDeleted, Uncertain]);
}

#[test]
fn only_ok_undoes_a_volume() {
    let volume = new_volume(&world());
    assert_eq!(undone(&volume, Some(0), OrphanVolumePolicy::Retry), Creation::Refused);
    for code in [None, Some(4), Some(5), Some(9), Some(13)] {
        match undone(&volume, code, OrphanVolumePolicy::Retry) {
            Creation::Created(after) => {
                assert_eq!((after.undo_failed, after.handle), (true, volume.handle.clone()));
                assert!(Arc::ptr_eq(&after.plan, &volume.plan));
            }
            other => panic!("{other:?}"),
        }
    }
}
