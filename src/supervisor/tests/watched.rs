//! What readiness says of the watch of AttacherConfigs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource as _;
use kube::runtime::watcher::{self, Event};
use std::time::Duration;
use tokio::time::advance;

use super::status::{driver, fresh_with};
use crate::api::AttacherConfigObject;
use crate::health::Health;
use crate::reflect::RECOVERED;
use crate::runtime::DriverPhase;
use crate::supervisor::watched::WatchReadiness;
use crate::watch_answers::WatchAnswers;

fn refused(code: u16) -> watcher::Error {
    // As the authorizer says it, where the code is its own.
    let message = "forbidden: User \"u\" cannot watch resource \"attacherconfigs\"";
    let status = kube::core::Status::failure(message, "Refused").with_code(code);
    watcher::Error::WatchStartFailed(kube::Error::Api(status.boxed()))
}

fn watched() -> (WatchReadiness, Health) {
    recorded_by(WatchAnswers::default())
}

fn recorded_by(answers: WatchAnswers) -> (WatchReadiness, Health) {
    let health = Health::new();
    let check = health.check("watch/attacherconfigs");
    (WatchReadiness::new(check, answers), health)
}

fn list(watched: &mut WatchReadiness) {
    for event in [Event::Init, Event::InitApply(()), Event::InitDone] {
        watched.event(&event);
    }
}

/// Each watch that is refused is followed by a list (`store::from_lists`), which does not say that the next watch stands.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_after_each_list_is_not_ready() {
    let (mut watched, health) = watched();
    list(&mut watched);
    watched.error(&refused(403));
    assert!(health.is_ready(), "the storage of a new CRD may refuse once");
    for round in 0..10 {
        list(&mut watched);
        watched.error(&refused(403));
        watched.check_recovery();
        assert!(!health.is_ready(), "round {round}");
    }
    let reason = health.readiness()[0].failure.clone().unwrap();
    assert!(reason.starts_with("cannot watch attacherconfigs: "), "{reason}");
    let rule = "apiGroups [\"attacher.csi.dev\"], resources [attacherconfigs], verbs [list, watch]";
    assert!(reason.contains(rule) && !reason.contains("CRD"), "{reason}");
}

/// A CRD that is not there is another thing than a permission or credentials that are missing.
#[tokio::test(start_paused = true)]
async fn why_attacherconfigs_cannot_be_watched_is_told_apart() {
    let causes = [
        (404, "is the CRD installed?"),
        (401, "credentials"),
        (403, "ClusterRole"),
    ];
    for (code, told) in causes {
        let (mut watched, health) = watched();
        watched.error(&refused(code));
        let reason = health.readiness()[0].failure.clone().unwrap();
        for (_, other) in causes {
            assert_eq!(reason.contains(other), other == told, "{code}: {reason}");
        }
        assert!(reason.ends_with("until then no driver is served"), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_ready_with_a_list_after_an_outage_with_news_and_with_time() {
    let (mut watched, health) = watched();
    watched.error(&refused(503));
    assert!(!health.is_ready(), "nothing was listed");
    list(&mut watched);
    assert!(health.is_ready());
    let news: fn(&mut WatchReadiness) = |watched| watched.event(&Event::Apply(()));
    let departure: fn(&mut WatchReadiness) = |watched| watched.event(&Event::Delete(()));
    for stands in [list, news, departure] {
        watched.error(&refused(503));
        watched.error(&refused(503));
        assert!(!health.is_ready());
        stands(&mut watched);
        assert!(health.is_ready());
    }
    watched.error(&refused(429));
    watched.error(&refused(429));
    watched.check_recovery();
    assert!(!health.is_ready());
    advance(RECOVERED).await;
    watched.check_recovery();
    assert!(health.is_ready());
    watched.error(&refused(429));
    assert!(health.is_ready(), "the first one since");
}

/// After a pause, and while the next watch waits as the API server asked.
#[tokio::test(start_paused = true)]
async fn it_is_ready_when_the_watch_is_accepted_and_not_while_that_waits() {
    let (answers, path) = (WatchAnswers::default(), AttacherConfigObject::url_path(&(), None));
    let (mut watched, health) = recorded_by(answers.clone());
    list(&mut watched);
    for seconds in [1, 300] {
        answers.asked(&path);
        watched.error(&refused(429));
        watched.error(&refused(429));
        advance(Duration::from_secs(seconds)).await;
        watched.check_recovery();
        assert!(!health.is_ready(), "it waits for {seconds} s");
        answers.accepted(&path);
        watched.check_recovery();
        assert!(health.is_ready(), "it is accepted after {seconds} s");
    }
}

/// That a watch was accepted before it broke says nothing of the next one, and neither does a list that does not come.
#[tokio::test(start_paused = true)]
async fn an_answer_to_the_watch_before_does_not_count() {
    let (answers, path) = (WatchAnswers::default(), AttacherConfigObject::url_path(&(), None));
    let (mut watched, health) = recorded_by(answers.clone());
    list(&mut watched);
    answers.accepted(&path);
    watched.error(&refused(503));
    watched.error(&refused(503));
    watched.check_recovery();
    assert!(!health.is_ready());
    watched.event(&Event::<()>::Init);
    advance(RECOVERED * 10).await;
    watched.check_recovery();
    assert!(!health.is_ready());
    list(&mut watched);
    assert!(health.is_ready());
}

#[test]
fn lists_that_do_not_come_are_explained() {
    let watch_failure = Some("cannot watch csinodes: forbidden".to_owned());
    for (phase, kinds) in [(DriverPhase::Syncing, 2), (DriverPhase::Running, 0)] {
        let driver = driver(phase);
        let told = fresh_with(Some(&driver), |input| input.watch_failure.clone_from(&watch_failure));
        let explained = |condition: &&Condition| condition.message.ends_with("; cannot watch csinodes: forbidden");
        assert_eq!(told.conditions.iter().filter(explained).count(), kinds);
    }
}
