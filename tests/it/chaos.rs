//! The parts of `make chaos` that are pure: the checker, given histories that are wrong in one way each, the plan, and the settings.

#[allow(
    dead_code,
    reason = "some kinds are found by those who look, and only told by the checker"
)]
#[path = "../chaos/checker.rs"]
mod checker;
#[allow(dead_code, reason = "calls of a real driver are read in the run itself")]
#[path = "../chaos/effect.rs"]
mod effect;
#[path = "../chaos/history.rs"]
mod history;
#[path = "../chaos/plan.rs"]
mod plan;
#[path = "../chaos/schema.rs"]
mod schema;

use checker::{Kind, check, story};
use history::{Call, Finding, History, Lapse, LostAnswers, Note, Observation, Place, Process, Step, Stop, Term};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use csi_attacher_model::api::AttacherConfig;
use kube::CustomResourceExt as _;

fn at(milliseconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap() + SignedDuration::from_millis(milliseconds)
}

fn place(node: &str) -> Place {
    Place {
        driver: "d".to_owned(),
        volume: "v".to_owned(),
        node: node.to_owned(),
    }
}

fn process(pid: u32, identity: &str) -> Process {
    Process {
        identity: identity.to_owned(),
        pid,
        version: "new",
        started: at(0),
        ended: None,
        stops: Vec::new(),
    }
}

fn call(pid: u32, makes: bool, node: &str, from: i64, to: i64) -> Call {
    Call {
        place: place(node),
        makes,
        handle: Some("v".to_owned()),
        ok: true,
        pid,
        started: at(from),
        finished: Some(at(to)),
        cancelled: false,
        outcome: "Answered Ok".to_owned(),
    }
}

fn term(holder: &str, acquired: i64) -> Term {
    Term {
        driver: "d".to_owned(),
        namespace: "n".to_owned(),
        holder: Some(holder.to_owned()),
        acquired: at(acquired),
        seen: at(acquired),
    }
}

fn step(milliseconds: i64, node: &str, step: Step) -> Observation {
    Observation {
        at: at(milliseconds),
        place: place(node),
        step,
    }
}

/// Process 1 attaches and detaches at a node; then process 2 has the Lease and does so at another.
fn clean() -> History {
    History {
        calls: vec![
            call(1, true, "a", 1100, 1200),
            call(1, false, "a", 3100, 3200),
            call(2, true, "b", 8100, 8200),
        ],
        processes: vec![process(1, "one"), process(2, "two")],
        terms: vec![term("one", 500), term("two", 7000)],
        observations: vec![
            step(1000, "a", Step::Create),
            step(1300, "a", Step::Attached { published: true }),
            step(3000, "a", Step::Delete),
            step(3050, "a", Step::DeleteAnswered { finalizer: true }),
            step(3300, "a", Step::Gone),
            step(3301, "a", Step::Free),
            step(8000, "b", Step::Create),
            step(8300, "b", Step::Attached { published: true }),
        ],
        ..History::default()
    }
}

/// What is found in a history after a change.
fn found_in(mut history: History, change: impl FnOnce(&mut History)) -> Vec<Kind> {
    change(&mut history);
    check(&history).iter().map(|violation| violation.kind).collect()
}

fn found(change: impl FnOnce(&mut History)) -> Vec<Kind> {
    found_in(clean(), change)
}

/// Both changes.
fn also(first: impl Fn(&mut History) + Copy, then: impl Fn(&mut History) + Copy) -> impl Fn(&mut History) + Copy {
    move |history: &mut History| {
        first(history);
        then(history);
    }
}

/// This process stood still.
fn stops(history: &mut History, pid: usize, from: i64, to: i64) {
    let (from, to) = (at(from), Some(at(to)));
    history.processes[pid - 1].stops.push(Stop { from, to });
}

#[test]
fn who_held_a_lease_before_a_restore_does_not_count_after_it() {
    assert_eq!(found(|_| {}), []);
    let taken_back = |history: &mut History| {
        // Process 2 took the Lease after the copy, which says that process 1 has it.
        history.terms.push(Term {
            seen: at(7900),
            ..term("one", 500)
        });
        history.calls[2].pid = 1;
    };
    assert_eq!(found(taken_back), [Kind::CallWithoutLease]);
    let restored = also(taken_back, |history| history.restores = vec![(at(7600), at(7700))]);
    assert_eq!(found(restored), []);
}

#[test]
fn attached_without_being_published_is_found() {
    let step = |history: &mut History| history.observations[7].step = Step::Attached { published: false };
    assert_eq!(found(step), [Kind::AttachedNotPublished]);
    // What a process had sent before it stood still cannot be called back.
    let with_a_left_call = also(step, |history| {
        history.calls.insert(2, call(1, false, "b", 4000, 8250));
        stops(history, 1, 4010, 20_000);
    });
    assert_eq!(found(with_a_left_call), []);
}

#[test]
fn what_is_kept_after_its_attachment_is_gone_is_found() {
    let kept = |history: &mut History| history.observations[5].step = Step::Kept;
    assert_eq!(found(kept), [Kind::GoneButPublished]);
    // Without the finalizer, which the API server can lose, whoever published must go on to take it back.
    let lost = also(kept, |history| {
        history.observations[3].step = Step::DeleteAnswered { finalizer: false };
    });
    assert_eq!(found(lost), [Kind::GoneButPublished]);
    let lost_and_killed = also(lost, |history| history.processes[0].ended = Some(at(3250)));
    assert_eq!(found(lost_and_killed), []);
    let lost_and_stopped = |from, to| found(also(lost, |history| stops(history, 1, from, to)));
    assert_eq!(lost_and_stopped(3250, 3280), []);
    assert_eq!(
        lost_and_stopped(500, 900),
        [Kind::GoneButPublished],
        "it had gone on before it published"
    );
    let lapse = |holder: &str, from: i64, to: i64| Lapse {
        driver: "d".to_owned(),
        holder: holder.to_owned(),
        from: at(from),
        to: at(to),
    };
    let lost_and_lapsed = also(lost, |history| history.lapses = vec![lapse("one", 2500, 5000)]);
    assert_eq!(found(lost_and_lapsed), []);
    let of_another = also(lost, |history| {
        history.lapses = vec![lapse("two", 2500, 5000), lapse("one", 3400, 6000)];
    });
    assert_eq!(found(of_another), [Kind::GoneButPublished]);
}

#[test]
fn two_processes_in_calls_for_one_volume_are_found() {
    let beside = |history: &mut History| history.calls[2] = call(2, true, "b", 3150, 3400);
    assert!(found(beside).contains(&Kind::TwoProcesses));
    let together = also(beside, |history| history.terms = Vec::new());
    assert_eq!(found(together), [Kind::TwoProcesses]);
    let of_another_volume = also(together, |history| history.calls[2].place.volume = "w".to_owned());
    assert_eq!(found(of_another_volume), []);
}

#[test]
fn a_call_that_a_stopped_process_left_is_no_violation_but_what_it_does_afterwards_is() {
    let left = |history: &mut History| {
        history.calls[1] = call(1, false, "a", 3100, 9000);
        history.calls[2] = call(2, true, "b", 8100, 8200);
        stops(history, 1, 3110, 9500);
    };
    assert_eq!(found(left), []);
    let not_given_up = also(left, |history| history.calls[1].finished = Some(at(20_000)));
    assert_eq!(found(not_given_up), [Kind::TwoProcesses]);
    let stopped_again = |from| found(also(not_given_up, |history| stops(history, 1, from, 19_900)));
    assert_eq!(stopped_again(9510), [], "before its first poll");
    assert_eq!(stopped_again(13_000), [Kind::TwoProcesses]);
    let begun_afterwards = also(left, |history| history.calls.push(call(1, false, "a", 9600, 9700)));
    assert_eq!(found(begun_afterwards), [Kind::CallWithoutLease]);
    let begun_while_it_stood = also(left, |history| history.calls.push(call(1, false, "a", 9400, 9450)));
    assert_eq!(found(begun_while_it_stood), []);
}

#[test]
fn a_killed_process_is_in_no_call() {
    let killed = |history: &mut History| {
        history.calls[1] = call(1, false, "a", 3100, 8150);
        history.calls[1].cancelled = true;
        history.processes[0].ended = Some(at(3120));
    };
    assert_eq!(found(killed), []);
}

#[test]
fn a_driver_that_stood_still_notices_late_who_gave_a_call_up() {
    let noticed_late = |history: &mut History| {
        history.calls[1] = call(1, false, "a", 3100, 8900);
        history.calls[1].cancelled = true;
    };
    assert_eq!(found(noticed_late), [Kind::TwoProcesses]);
    let with_stalls = |stalls: &[(i64, i64)]| {
        found(|history: &mut History| {
            noticed_late(history);
            history.stalls = stalls.iter().map(|(from, to)| (at(*from), at(*to))).collect();
        })
    };
    assert_eq!(with_stalls(&[(8000, 8700)]), []);
    assert_eq!(with_stalls(&[(8000, 8300), (8300, 8700)]), [], "one after the other");
    assert_eq!(with_stalls(&[(8200, 8700)]), [Kind::TwoProcesses], "it began too late");
    assert_eq!(
        with_stalls(&[(7000, 8300)]),
        [Kind::TwoProcesses],
        "it was over by then"
    );
}

#[test]
fn a_call_while_another_has_the_lease_is_found_wherever_the_lease_is() {
    let late = |history: &mut History| history.calls.push(call(1, false, "c", 7100, 7200));
    assert_eq!(found(late), [Kind::CallWithoutLease]);
    // It still has the Lease of the namespace before.
    let moved = also(late, |history| history.terms[1].namespace = "m".to_owned());
    assert_eq!(found(moved), []);
    // An old Lease is seen again after a restore of etcd.
    let seen_again = |history: &mut History| history.terms.push(term("one", 600));
    assert_eq!(found(seen_again), []);
}

#[test]
fn calls_against_the_attachment_are_found() {
    let in_use = |history: &mut History| history.calls.insert(1, call(1, false, "a", 2000, 2100));
    assert_eq!(found(in_use), [Kind::UnpublishInUse]);
    let after_gone = |history: &mut History| history.calls.insert(2, call(1, true, "a", 4000, 4100));
    assert_eq!(found(after_gone), [Kind::PublishAfterGone]);
    let lost = also(after_gone, |history| {
        history.observations[3].step = Step::DeleteAnswered { finalizer: false };
    });
    assert_eq!(found(lost), []);
    let restored = also(in_use, |history| history.restores.push((at(1900), at(2500))));
    assert_eq!(found(restored), []);
}

#[test]
fn what_is_overdue_or_was_found_by_others_is_told() {
    let overdue = |history: &mut History| {
        let (wanted, found) = ("attached".to_owned(), "nothing".to_owned());
        history.observations[7].step = Step::Overdue { wanted, found };
    };
    assert_eq!(found(overdue), [Kind::Overdue]);
    // The volume is still published at the other node. Of that nobody knows only where the finalizer was lost.
    let left = also(overdue, |history| drop(history.calls.remove(1)));
    assert_eq!(found(left), [Kind::Overdue]);
    let left_unknown = also(left, |history| {
        history.observations[3].step = Step::DeleteAnswered { finalizer: false };
    });
    assert_eq!(found(left_unknown), []);
    assert_eq!(found(two_nodes), [Kind::TwoNodes]);
    // Only what this version does is looked for.
    let by_the_former = also(two_nodes, |history| {
        for process in &mut history.processes {
            process.version = "former";
        }
    });
    assert_eq!(found(by_the_former), []);
    let by_a_left_call = also(two_nodes, |history| {
        history.calls.insert(2, call(1, true, "a", 3210, 8240));
        stops(history, 1, 3220, 9000);
    });
    assert_eq!(found(by_a_left_call), []);
}

fn two_nodes(history: &mut History) {
    history.findings.push(Finding {
        at: at(8250),
        kind: Kind::TwoNodes,
        object: "v".to_owned(),
        text: "published at a and b".to_owned(),
    });
}

/// Published for an object whose finalizer the API server lost: whoever goes on takes it back.
#[test]
fn what_was_published_for_a_lost_finalizer_is_taken_back() {
    let lost = also(two_nodes, |history| {
        // Before another process has the Lease.
        history.findings[0].at = at(3500);
        history.observations[3].step = Step::DeleteAnswered { finalizer: false };
        history.calls.insert(2, call(1, true, "a", 3060, 3100));
    });
    assert_eq!(found(lost), [Kind::TwoNodes]);
    let lost_and_stopped = also(lost, |history| stops(history, 1, 3120, 9000));
    assert_eq!(found(lost_and_stopped), []);
    // It may be recorded as attached, so that a pod may use it: whoever does not know that leaves it alone.
    let lost_with = |holder: Option<&str>| {
        let holder = holder.map(str::to_owned);
        move |history: &mut History| {
            lost(history);
            let (from, to) = (at(3090), at(3200));
            history.lost_answers.push(LostAnswers { holder, from, to });
        }
    };
    assert_eq!(found(lost_with(Some("one"))), []);
    assert_eq!(found(lost_with(None)), []);
    assert_eq!(found(lost_with(Some("two"))), [Kind::TwoNodes]);
}

/// The volume that is made for a claim: its name, which is that of the PersistentVolume, and its ID.
const NAME: &str = "pvc-00000000-0000-0000-0000-000000000001";
const HANDLE: &str = "pvc-00000000-0000-0000-0000-000000000001-7";

fn made(pid: u32, makes: bool, from: i64, to: i64) -> Call {
    let mut call = call(pid, makes, "", from, to);
    NAME.clone_into(&mut call.place.volume);
    call.handle = (!makes).then(|| HANDLE.to_owned());
    call
}

fn of_provisioner(mut term: Term) -> Term {
    term.driver = history::provisioner("d");
    term
}

/// A claim is bound, attached by one process, and deleted before its VolumeAttachment. Another process has the provisioner's Lease.
fn with_a_claim() -> History {
    let of = |volume: &str, node, milliseconds, what| {
        let mut step = step(milliseconds, node, what);
        volume.clone_into(&mut step.place.volume);
        step
    };
    let of_claim = |milliseconds, what| of(NAME, "", milliseconds, what);
    let attached = |milliseconds, what| of(HANDLE, "a", milliseconds, what);
    let attach = |makes, from, to| {
        let mut call = call(1, makes, "a", from, to);
        HANDLE.clone_into(&mut call.place.volume);
        call.handle = Some(HANDLE.to_owned());
        call
    };
    History {
        calls: vec![
            made(2, true, 1100, 1200),
            attach(true, 2100, 2200),
            attach(false, 4600, 4700),
            made(2, false, 5100, 5200),
        ],
        processes: vec![process(1, "one"), process(2, "two")],
        terms: vec![term("one", 500), of_provisioner(term("two", 500))],
        observations: vec![
            of_claim(1000, Step::Create),
            of_claim(1300, Step::Attached { published: true }),
            attached(2000, Step::Create),
            attached(2300, Step::Attached { published: true }),
            of_claim(4000, Step::Delete),
            attached(4500, Step::Delete),
            attached(4550, Step::DeleteAnswered { finalizer: true }),
            attached(4800, Step::Gone),
            attached(4801, Step::Free),
            of_claim(5300, Step::Gone),
            of_claim(5301, Step::Free),
        ],
        ..History::default()
    }
}

fn found_of_claim(change: impl FnOnce(&mut History)) -> Vec<Kind> {
    found_in(with_a_claim(), change)
}

#[test]
fn nothing_is_found_where_a_claim_came_and_went() {
    assert_eq!(found_of_claim(|_| {}), []);
    // The call that was repeated after an error is no second volume, nor is one that is made when the former was deleted.
    let again = |history: &mut History| {
        history.calls.insert(1, made(2, true, 1220, 1250));
        history.calls.insert(1, made(2, false, 1205, 1210));
        history.calls[1].handle = Some(format!("{NAME}-6"));
    };
    assert_eq!(found_of_claim(again), []);
}

#[test]
fn a_claim_without_its_volume_is_found_whatever_stood_still() {
    let lost = |history: &mut History| history.observations[1].step = Step::Attached { published: false };
    assert_eq!(found_of_claim(lost), [Kind::BoundWithoutVolume]);
    let left = also(lost, |history| {
        history.calls.insert(1, made(2, false, 1210, 1290));
        stops(history, 2, 1220, 9000);
    });
    assert_eq!(found_of_claim(left), [Kind::BoundWithoutVolume]);
}

#[test]
fn a_volume_that_is_left_is_found_unless_a_process_that_stood_still_made_it() {
    let kept = |history: &mut History| history.observations[10].step = Step::Kept;
    assert_eq!(found_of_claim(kept), [Kind::VolumeLeft]);
    let differs = |history: &mut History| {
        history.findings.push(Finding {
            at: at(6000),
            kind: Kind::VolumesDiffer,
            object: NAME.to_owned(),
            text: "nothing names it".to_owned(),
        });
    };
    assert_eq!(found_of_claim(differs), [Kind::VolumesDiffer]);
    let late = also(differs, |history| {
        kept(history);
        history.processes[1].ended = Some(at(9000));
        history.processes.push(process(3, "three"));
        history.terms.push(of_provisioner(term("three", 5000)));
        history.calls[3].pid = 3;
        history.calls.push(made(2, true, 4900, 5250));
        stops(history, 2, 4910, 5260);
    });
    assert_eq!(found_of_claim(late), []);
    let not_given_up = also(late, |history| history.processes[1].stops.clear());
    let found = found_of_claim(not_given_up);
    let all = [Kind::TwoProcesses, Kind::VolumeLeft, Kind::VolumesDiffer];
    assert!(all.iter().all(|kind| found.contains(kind)), "{found:?}");
}

#[test]
fn a_deletion_of_what_is_in_use_is_found() {
    let bound = |history: &mut History| history.calls.insert(1, made(2, false, 1400, 1500));
    assert_eq!(found_of_claim(bound), [Kind::DeleteInUse]);
    let sent_before_a_standstill = also(bound, |history| stops(history, 2, 1350, 9000));
    assert_eq!(found_of_claim(sent_before_a_standstill), [Kind::DeleteInUse]);
    let attached = |history: &mut History| history.calls.push(made(2, false, 4100, 4200));
    assert_eq!(found_of_claim(attached), [Kind::DeleteInUse]);
    let not_unpublished = |history: &mut History| {
        history.calls[2].ok = false;
        history.calls.push(made(2, false, 4720, 4750));
    };
    assert_eq!(found_of_claim(not_unpublished), [Kind::DeleteInUse]);
    let unpublished = |history: &mut History| history.calls.push(made(2, false, 4720, 4750));
    assert_eq!(found_of_claim(unpublished), []);
    // It may be gone at once.
    let lost = also(not_unpublished, |history| {
        history.observations[6].step = Step::DeleteAnswered { finalizer: false };
    });
    assert_eq!(found_of_claim(lost), []);
    let restored = also(bound, |history| history.restores.push((at(1390), at(1600))));
    assert_eq!(found_of_claim(restored), []);
}

#[test]
fn calls_for_a_claim_by_whom_and_when_they_must_not_be_are_found() {
    let after = |history: &mut History| history.calls.push(made(2, true, 6000, 6100));
    assert_eq!(found_of_claim(after), [Kind::CreateAfterGone]);
    // It has the attacher's Lease, and not the provisioner's.
    let without_lease = |history: &mut History| history.calls[3].pid = 1;
    assert_eq!(found_of_claim(without_lease), [Kind::CallWithoutLease]);
    // Attaching and creating are calls for one volume.
    let together = |history: &mut History| history.calls.insert(1, made(2, true, 2150, 2250));
    assert_eq!(found_of_claim(together), [Kind::TwoProcesses]);
}

#[test]
fn two_volumes_for_one_claim_are_found() {
    let under_another_id = |history: &mut History| history.calls[3].handle = Some(format!("{NAME}-8"));
    assert_eq!(found_of_claim(under_another_id), [Kind::TwoVolumes]);
    let under_another_name = |history: &mut History| {
        let mut call = made(2, true, 1220, 1250);
        call.place.volume = NAME.replace("pvc", "other");
        history.calls.insert(1, call);
    };
    assert!(found_of_claim(under_another_name).contains(&Kind::TwoVolumes));
}

#[test]
fn the_story_tells_of_the_object_and_of_faults_and_of_nothing_else() {
    let mut history = clean();
    history.calls.insert(1, call(1, false, "a", 2000, 2100));
    let note = |milliseconds, object: &str, text: &str| Note {
        at: at(milliseconds),
        object: object.to_owned(),
        text: text.to_owned(),
    };
    history.notes = vec![
        note(1900, "", "begins: stop"),
        note(1901, "w", "another"),
        note(90_000, "", "much later"),
    ];
    let violations = check(&history);
    let told = story(&history, &violations[0], 100);
    for wanted in ["begins: stop", "Unpublish by one", "Attached { published: true }"] {
        assert!(told.contains(wanted), "{wanted}: {told}");
    }
    assert!(!told.contains("another") && !told.contains("much later"), "{told}");
    assert_eq!(story(&history, &violations[0], 2).lines().count(), 2);
}

#[test]
fn a_plan_is_the_same_for_the_same_seed_and_has_only_the_faults_that_are_wanted() {
    let all = plan::Kind::read("").unwrap();
    assert_eq!(all.len(), plan::KINDS.len());
    let draw = |seed, number, kinds: &[plan::Kind]| plan::Round::draw(seed, number, kinds, 3, 3);
    let mut drawn = std::collections::BTreeSet::new();
    for number in 0..200 {
        let round = draw(7, number, &all);
        assert_eq!(round, draw(7, number, &all));
        drawn.extend(round.faults.iter().map(|fault| fault.kind));
    }
    assert_eq!(drawn.len(), all.len(), "every kind is drawn");
    assert_ne!(draw(7, 0, &all), draw(8, 0, &all));
    let some = plan::Kind::read("stop, kill").unwrap();
    let kinds = (0..20).flat_map(|number| draw(7, number, &some).faults);
    assert!(kinds.map(|fault| fault.kind).all(|kind| some.contains(&kind)));
    assert_eq!(plan::Kind::read("stop,invented"), Err("invented".to_owned()));
}

#[test]
fn the_settings_to_be_walked_are_all_that_the_definition_has() {
    let definition = serde_json::to_value(AttacherConfig::crd()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let candidates = schema::candidates(schema);
    for field in [
        "spec.backoff.initial",
        "spec.suspend",
        "spec.concurrency.attach",
        "spec.leaderElection.namespace",
    ] {
        let values = candidates.iter().filter(|candidate| candidate.field() == field);
        assert!(values.count() >= 3, "{field}");
    }
    // Each field of the definition, also those of the items of lists.
    let mut left_out = Vec::new();
    let mut rest = vec![(vec![], schema)];
    while let Some((path, schema)) = rest.pop() {
        let below = |name: &String| [path.as_slice(), std::slice::from_ref(name)].concat();
        match schema["properties"].as_object() {
            Some(properties) => rest.extend(properties.iter().map(|(name, property)| (below(name), property))),
            None if candidates.iter().any(|candidate| candidate.path == path) => {}
            None => left_out.push(path),
        }
    }
    assert!(left_out.is_empty(), "{left_out:?}");
    let names = json!([{"namespace": "chaos", "names": []}]);
    assert!(candidates.iter().any(|candidate| candidate.value == names));
    let suspend = candidates
        .iter()
        .find(|candidate| candidate.field() == "spec.suspend")
        .unwrap();
    assert_eq!(suspend.patch(&json!(true)), json!({"spec": {"suspend": true}}));
    assert_eq!(schema::at(&json!({"suspend": 1}), &suspend.path), &json!(1));
}

#[test]
fn durations_of_go_are_read() {
    for (text, wanted) in [
        ("1m30s", 90_000),
        ("1.5s", 1500),
        ("24h", 86_400_000),
        ("1500us", 2),
        ("+7s", 7000),
    ] {
        assert_eq!(schema::milliseconds(text), Some(wanted), "{text}");
    }
    for text in ["soon", "7", "1x"] {
        assert_eq!(schema::milliseconds(text), None, "{text}");
    }
}

#[test]
fn an_effect_that_is_not_that_of_the_settings_is_told_with_the_field() {
    let effect = effect::Effect {
        publish_deadline: Some(6000),
        fs_type: Some("ext4".to_owned()),
        attach_peak: 2,
        lease_seconds: Some(3),
        given_secret: true,
        ..effect::Effect::default()
    };
    let spec = json!({
        "publishSecrets": [{"namespace": "chaos-secrets", "names": ["d0"]}],
        "timeouts": {"publish": "6s"}, "defaultFsType": "ext4", "concurrency": {"attach": 2},
        "leaderElection": {"leaseDuration": "3s"},
    });
    assert_eq!(effect::wrong(&effect, &spec), [""; 0]);
    for (pointer, value, field) in [
        ("/timeouts/publish", json!("7s"), "spec.timeouts.publish"),
        ("/defaultFsType", json!("xfs"), "spec.defaultFsType"),
        (
            "/publishSecrets",
            json!([{"namespace": "chaos"}]),
            "spec.publishSecrets",
        ),
        ("/concurrency/attach", json!(1), "spec.concurrency.attach"),
        (
            "/leaderElection/leaseDuration",
            json!("4s"),
            "spec.leaderElection.leaseDuration",
        ),
    ] {
        let mut other: Value = spec.clone();
        *other.pointer_mut(pointer).unwrap() = value;
        let wrong = effect::wrong(&effect, &other);
        assert!(matches!(&wrong[..], [one] if one.contains(field)), "{wrong:?}");
    }
}
