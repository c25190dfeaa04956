//! What Jaeger must never be told.

use super::{LIMIT, ROOT, SERVICE, Scene};
use crate::canary::{Needles, SECRETS, attach_and_detach, audited, echoing, events};
use crate::support::Result;
use crate::support::jaeger::{Jaeger, Trace};
use crate::support::stage::stop;

const NAME: &str = "jaeger-t6";
/// The message of the driver, as it comes out.
const MASKED: &str = "***stripped*** refused for ***stripped*** ***stripped***  ***stripped***";

#[tokio::test]
async fn t6_a_secret_in_a_drivers_error_is_found_nowhere_in_jaeger() -> Result<()> {
    let scene = Scene::enter().await?;
    scene.stage.publish_secret(&SECRETS).await?;
    let mut operator = scene.trusted_operator(scene.options()).await?;
    let driver = scene.stage.driver(echoing(NAME), NAME).await?;
    let config = attach_and_detach(&scene.stage, NAME).await?;
    let metrics = operator.metrics().await?;
    stop(&mut operator).await?;

    let plugin = format!("{NAME}.csi.test");
    let tags = [("container.csi.plugin.name", plugin.as_str())];
    // The API server exports last; its spans are searched too.
    let all = |traces: &[Trace]| {
        let attach = traces.iter().find(|trace| !trace.named(ROOT).is_empty());
        attach.is_some_and(|trace| !trace.of_service(super::APISERVER).is_empty())
            && traces
                .iter()
                .any(|trace| !trace.named("VolumeAttachment.detach").is_empty())
    };
    scene
        .jaeger
        .wait_for_search((SERVICE, &tags), "attach and detach", LIMIT, all)
        .await?;
    // The driver had all values and put them into its errors.
    let failed = driver
        .handle
        .calls()
        .into_iter()
        .filter(|call| call.code == Some(tonic::Code::Internal));
    let keys: Vec<_> = failed.map(|call| call.secret_keys).collect();
    assert_eq!(keys, [SECRETS.map(|(key, _)| key), SECRETS.map(|(key, _)| key)]);

    let traces = scene.jaeger.find_raw(SERVICE, &tags).await?;
    let attachments = audited(&scene.stage, "volumeattachments")?;
    let telling = [
        ("traces", traces),
        ("log", operator.log_text()),
        ("VolumeAttachments as written", attachments),
        ("AttacherConfig", config),
    ];
    for (place, text) in &telling {
        assert!(text.contains(MASKED), "{place}: {text}");
    }
    let others = [
        (
            "all traces of the operator",
            scene.jaeger.get(&Jaeger::query(SERVICE, &[])).await?,
        ),
        ("metrics", metrics),
        ("events", events(&scene.stage).await?),
    ];
    for (place, text) in telling.iter().chain(&others) {
        let found = Needles::new().find(text);
        assert!(found.is_empty(), "{place}: {found:#?}");
    }
    Ok(())
}
