//! Waits for Secrets: they end with the attachment that waits, and leave the API server to the work.

use super::*;

#[tokio::test(start_paused = true)]
async fn missing_secrets_of_attachments_that_are_gone_are_asked_for_no_more() {
    let scene = Scene::new(allowing(&["ns"]));
    let with_secret = |number| {
        let name = format!("va{number}");
        scene.volume(&name, Some(("ns", &name)));
        scene.attachment(&name, &json!({}))
    };
    let made: Vec<Value> = (0..200).map(with_secret).collect();
    seconds(60).await;
    let asked = scene.reads().len();
    assert!(asked >= 200, "each Secret was asked for: {asked}");
    for object in &made {
        scene.deleted(object);
    }
    seconds(10).await;
    let before = scene.reads().len();
    seconds(600).await;
    // In ten minutes without an attachment.
    assert_eq!(scene.reads().len(), before);
}

/// The watch tells of the end, or had a gap, and the list after it does not show the attachments any more.
#[tokio::test(start_paused = true)]
async fn nothing_waits_for_an_attachment_that_is_gone() {
    for is_told in [true, false] {
        let scene = Scene::new(allowing(&["ns"]));
        scene.api.secrets_forbidden.store(true, Ordering::SeqCst);
        let made = ["va0", "va1"].map(|name| {
            scene.volume(name, Some(("ns", name)));
            scene.attachment(name, &json!({}))
        });
        seconds(60).await;
        assert_eq!(scene.waiting(), Some(2));
        if is_told {
            for object in &made {
                scene.deleted(object);
            }
        } else {
            let mut objects = scene.api.objects.lock();
            objects.retain(|path, _| !path.starts_with(ATTACHMENTS));
            drop(objects);
            scene.list(&[]);
        }
        seconds(1).await;
        assert_eq!(scene.waiting(), None, "told: {is_told}");
        let before = scene.reads().len();
        seconds(600).await;
        assert_eq!(scene.reads().len(), before, "told: {is_told}");
    }
}

/// A volume that is made anew under its name has another Secret, or none, or is another driver's.
#[tokio::test(start_paused = true)]
async fn nothing_waits_for_a_secret_that_the_volume_does_not_name_any_more() {
    let scene = Scene::new(patient);
    scene.api.secrets_forbidden.store(true, Ordering::SeqCst);
    scene.volume("va0", Some(("ns", "first")));
    scene.attachment("va0", &json!({}));
    seconds(30).await;
    assert_eq!(scene.waiting(), Some(1));
    scene.volume("va0", Some(("ns", "second")));
    seconds(10).await;
    let first_of = |reads: &[String]| reads.iter().filter(|path| path.ends_with("/first")).count();
    let before = first_of(&scene.reads());
    seconds(60).await;
    assert_eq!(first_of(&scene.reads()), before, "it is named no more");
    assert_eq!(scene.waiting(), Some(1), "for the other one");
    scene.volume("va0", Some(("elsewhere", "third")));
    seconds(10).await;
    let before = scene.reads().len();
    seconds(60).await;
    let state = || (scene.reads().len(), scene.waiting());
    assert_eq!(state(), (before, Some(1)), "that is not allowed");
    let secret = json!({"namespace": "elsewhere", "name": "third"});
    let csi = json!({"driver": "another.test", "controllerPublishSecretRef": secret});
    scene.volume_with("va0", &json!({"spec": {"csi": csi}}));
    seconds(10).await;
    assert_eq!(state(), (before, None), "of a volume of another driver");
    scene.volume("va0", None);
    seconds(10).await;
    assert_eq!(*scene.driver.given.lock(), [("publish", Vec::new())]);
    assert_eq!(state(), (before, None));
}

/// However many Secrets are missing, a few are asked for in a second, in turns; with news of each in the end.
#[tokio::test(start_paused = true)]
async fn looks_at_missing_secrets_are_few_and_in_turns() {
    let scene = Scene::new(patient);
    let names: Vec<String> = (0..300).map(|number| format!("va{number:03}")).collect();
    for name in &names {
        scene.volume(name, Some(("ns", name)));
        scene.attachment(name, &json!({}));
    }
    seconds(10).await;
    let before = scene.reads().len();
    seconds(600).await;
    let reads = scene.reads().split_off(before);
    assert!(reads.len() <= 4 * 600 + 1, "{} looks in ten minutes", reads.len());
    let looked_at: std::collections::BTreeSet<&String> = reads.iter().collect();
    assert_eq!(looked_at.len(), 256, "Secrets that are looked at");
    let looks = |path: &&String| reads.iter().filter(|read| read == path).count();
    let least = looked_at.iter().map(looks).min();
    assert!(least >= Some(8), "each has its turn: {least:?}");
    // What a look finds is acted on at once.
    let (_, name) = looked_at.last().unwrap().rsplit_once('/').unwrap();
    scene.secret("ns", name);
    seconds(70).await;
    assert!(AttemptFixture::is_attached(&scene.api, name));
}

/// With a limit of requests that the work uses up, nothing is left for looks.
#[tokio::test(start_paused = true)]
async fn looks_leave_the_limit_of_requests_to_the_work() {
    let scene = Scene::new(|spec| {
        patient(spec);
        (spec.kubernetes_api.qps, spec.kubernetes_api.burst) = (5, 5);
    });
    for number in 0..200 {
        let name = format!("va{number}");
        scene.volume(&name, Some(("ns", &name)));
        scene.attachment(&name, &json!({}));
    }
    // A read and a write each.
    seconds(100).await;
    let looks = scene.reads().len();
    // Two writes each: 20 seconds.
    for number in 0..50 {
        let name = format!("work{number}");
        scene.volume(&name, None);
        scene.attachment(&name, &json!({}));
    }
    let began = tokio::time::Instant::now();
    let all = |api: &Api| (0..50).all(|number| AttemptFixture::is_attached(api, &format!("work{number}")));
    while !all(&scene.api) {
        seconds(1).await;
        assert!(began.elapsed() < Duration::from_mins(1), "the work waits behind looks");
    }
    assert!(began.elapsed() <= Duration::from_secs(21), "{:?}", began.elapsed());
    let during = scene.reads().len() - looks;
    assert!(during <= 3, "{during} looks while there was work");
    seconds(60).await;
    assert!(scene.reads().len() > looks + during + 100, "they go on afterwards");
}

/// An attach of another volume is tried again as soon as its own backoff is over, after its driver has failed.
async fn another_goes_on(scene: &Scene) {
    scene.driver.failures.lock().push(tonic::Code::Unavailable);
    scene.volume("good", None);
    scene.attachment("good", &json!({}));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(AttemptFixture::is_attached(&scene.api, "good"));
    assert_eq!(scene.driver.given.lock().len(), 2);
}

/// Many that wait for the same, and have cost the driver nothing.
const MANY: usize = 500;

/// Adds them, by their names, and lets them wait.
async fn crowd(suffix: &str, add: impl Fn(&str)) {
    for number in 0..MANY {
        add(&format!("va{number}{suffix}"));
    }
    seconds(30).await;
}

#[tokio::test(start_paused = true)]
async fn missing_secrets_hold_up_no_other_attachment() {
    let scene = Scene::new(allowing(&["ns"]));
    crowd("", |name| {
        scene.volume(name, Some(("ns", "s")));
        scene.attachment(name, &json!({}));
    })
    .await;
    another_goes_on(&scene).await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_node_holds_up_no_other_attachment() {
    let scene = Scene::new(|_| {});
    crowd("", |name| {
        scene.volume(name, None);
        scene.attachment_with(name, &json!({"spec": {"nodeName": "new"}}));
    })
    .await;
    another_goes_on(&scene).await;
    scene.store.apply(CsiNode::new("new", &[(DRIVER, "id")]));
    seconds(30).await;
    assert_eq!(scene.driver.given.lock().len(), MANY + 2, "each was called for once");
}

/// Has the API server refuse all patches of what has such a name, as an admission webhook may.
fn refuse(scene: &Scene, name: &str) {
    let words = "admission webhook \"w\" denied the request";
    scene.api.refuse(name, usize::MAX, 403, words);
}

#[tokio::test(start_paused = true)]
async fn volumes_that_cannot_be_protected_hold_up_no_other_attachment() {
    let scene = Scene::new(|_| {});
    refuse(&scene, "-refused");
    crowd("-refused", |name| {
        scene.volume_with(name, &json!({"metadata": {"finalizers": null}}));
        scene.attachment(name, &json!({}));
    })
    .await;
    another_goes_on(&scene).await;
}

#[tokio::test(start_paused = true)]
async fn volumes_that_cannot_be_released_hold_up_no_attachment() {
    let scene = Scene::new(|_| {});
    refuse(&scene, "-refused");
    let deleted = json!({"metadata": {"deletionTimestamp": DELETED}});
    crowd("-refused", |name| scene.volume_with(name, &deleted)).await;
    assert!(scene.api.untrue.lock()[0].times < usize::MAX - MANY, "each was tried");
    another_goes_on(&scene).await;
}

/// As a sidecar left them, which writes no note of the volume.
#[tokio::test(start_paused = true)]
async fn attachments_that_cannot_be_noted_hold_up_no_other_one() {
    let scene = Scene::new(|_| {});
    refuse(&scene, "-refused");
    let attached = json!({"metadata": claimed("id", false), "status": {"attached": true}});
    crowd("-refused", |name| {
        scene.volume(name, None);
        scene.attachment_with(name, &attached);
    })
    .await;
    assert!(scene.api.untrue.lock()[0].times < usize::MAX - MANY, "each was tried");
    another_goes_on(&scene).await;
}
