//! Drivers without ControllerPublishVolume: whether they never had it, or lost it while volumes may be attached (invariant 14 of
//! ARCHITECTURE).
//!
//! A driver may come without PUBLISH_UNPUBLISH_VOLUME by mistake: the endpoint leads to its node plugin, or its controller was started
//! without the option that lets it attach. To serve it without calls would show volumes as attached that are not, and let go of volumes
//! that are. Whether it was published to is read from the objects, so that every replica finds the same, also after a restart.

use crate::api::condition::ConditionReason;
use crate::api::names::CONFIRM_CAPABILITY_LOST_ANNOTATION;
use crate::api::validated::{CapabilityLost, DriverConfig, Endpoint};
use crate::apiserver::{ApiError, ApiErrorKind, CsiDriver, CsiDriverWire};
use crate::cache::Marks;
use crate::decide::{DriverFacts, ReleaseWithoutCall};
use crate::telemetry::Span;
use csi_attacher_model::answer::NOT_AUTHENTICATED;
use csi_attacher_runtime::Refusal;
use std::time::Duration;

use super::context::SharedContext;

/// Whether a person confirmed something else by now than what an engine goes by, which has no calls.
pub(super) fn is_confirmed_otherwise(
    facts: &DriverFacts,
    config: &DriverConfig,
    marks: impl FnOnce() -> Marks,
) -> bool {
    let confirmed_for = Some(facts.name.to_string());
    let confirmed = config.capability_lost == CapabilityLost::Stall { confirmed_for };
    match facts.release {
        _ if facts.capabilities.publish_unpublish => false,
        ReleaseWithoutCall::Confirmed => !confirmed,
        // It is about what is claimed. The annotation stays when nothing is any more, and where all is released anyway.
        ReleaseWithoutCall::Unclaimed => confirmed && !marks().is_empty(),
        ReleaseWithoutCall::Nothing => confirmed,
        ReleaseWithoutCall::AttachNotRequired => false,
    }
}

/// Resolves when an engine goes by a CSIDriver that needs no attach, and the CSIDriver does not say so any more: it was created again with
/// another answer, or is gone. That it cannot be read says nothing.
pub(super) async fn may_need_attach(context: &SharedContext, facts: &DriverFacts, pause: Duration) {
    if facts.release != ReleaseWithoutCall::AttachNotRequired {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(pause).await;
        let answer = context.requests.find::<CsiDriverWire>(&*facts.name).await;
        if let Ok(found) = answer
            && found.map(CsiDriver::from).is_none_or(|driver| driver.attach_required)
        {
            return;
        }
    }
}

/// What may be released without a call; refused when the driver must not be worked for.
pub(super) async fn release_without_call(
    context: &SharedContext,
    facts: &DriverFacts,
    config: &DriverConfig,
    name: &str,
) -> Result<ReleaseWithoutCall, Refusal> {
    let CapabilityLost::Stall { confirmed_for } = &config.capability_lost else {
        return Ok(ReleaseWithoutCall::Nothing);
    };
    let confirmed_for = confirmed_for.as_deref();
    if facts.capabilities.publish_unpublish {
        return Ok(ReleaseWithoutCall::Nothing);
    }
    let marks = context.store.marks(facts);
    if let Some(release) = unasked(facts, &marks, confirmed_for) {
        return Ok(release);
    }
    let quiet = Span::disabled();
    let answer = context.requests.get::<CsiDriverWire>(&*facts.name, None, &quiet);
    match answer.await.map(CsiDriver::from) {
        Ok(driver) if !driver.attach_required => Ok(ReleaseWithoutCall::AttachNotRequired),
        answer => Err(Refusal {
            reason: ConditionReason::CapabilityLost,
            message: words(name, facts, &config.endpoint, &marks, &answer, confirmed_for),
        }),
    }
}

/// What a driver without calls may release, if its CSIDriver need not be asked.
fn unasked(facts: &DriverFacts, marks: &Marks, confirmed_for: Option<&str>) -> Option<ReleaseWithoutCall> {
    if marks.is_empty() {
        return Some(ReleaseWithoutCall::Unclaimed);
    }
    (confirmed_for == Some(&*facts.name)).then_some(ReleaseWithoutCall::Confirmed)
}

/// What is wrong with a driver that lost the capability, and how to mend it.
fn words(
    config: &str,
    facts: &DriverFacts,
    endpoint: &Endpoint,
    marks: &Marks,
    csi_driver: &Result<CsiDriver, ApiError>,
    confirmed_for: Option<&str>,
) -> String {
    let (driver, finalizer) = (&facts.name, &facts.finalizer);
    let mark = match (&marks.attachment, &marks.volume) {
        (Some(name), _) if marks.attachments == 1 => format!("VolumeAttachment {name}"),
        (Some(name), _) => format!("{} VolumeAttachments, {name} for one,", marks.attachments),
        (None, name) => format!("PersistentVolume {}", name.as_deref().unwrap_or_default()),
    };
    let carries = if marks.attachments > 1 { "carry" } else { "carries" };
    let csi_driver = match csi_driver {
        Ok(_) => format!("CSIDriver {driver} has attachRequired: true"),
        Err(error) => match error.kind {
            ApiErrorKind::NotFound => format!("there is no CSIDriver {driver}"),
            _ if error.is_unauthenticated() => format!("CSIDriver {driver} cannot be read, as {NOT_AUTHENTICATED}"),
            _ if error.is_forbidden() => {
                format!(
                    "the operator has no permission to read CSIDriver {driver} (allow get on csidrivers.storage.k8s.io)"
                )
            }
            _ => format!("CSIDriver {driver} cannot be read now"),
        },
    };
    let confirmed = match confirmed_for {
        Some(other) => format!(" (the annotation names {other:?}, which is not the driver)"),
        None => String::new(),
    };
    format!(
        "driver {driver} does not announce PUBLISH_UNPUBLISH_VOLUME any more, but {mark} {carries} the finalizer \
         {finalizer}, so volumes may be attached: no volume is attached, detached or released. Check that \
         spec.endpoint ({endpoint}) is the controller plugin and not the node plugin, and that the controller runs \
         with its attach option. {csi_driver}; attachRequired: false there would end this. If the driver really does \
         not attach any more, confirm it{confirmed}: kubectl annotate attacherconfig {config} \
         {CONFIRM_CAPABILITY_LOST_ANNOTATION}={driver} --overwrite"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::AttacherConfigSpec;
    use crate::api::condition::MAX_MESSAGE_BYTES;
    use crate::decide::Capabilities;

    fn failed(status: u16) -> Result<CsiDriver, ApiError> {
        Err(ApiError::of_answer(status, "no"))
    }

    #[test]
    fn a_confirmation_counts_for_the_driver_that_it_names() {
        let facts = DriverFacts::new("a.test", Capabilities::default());
        let none = Marks::default();
        let volume = Marks {
            volume: Some("pv1".into()),
            ..Marks::default()
        };
        let attachment = Marks {
            attachments: 1,
            attachment: Some("va1".into()),
            volume: None,
        };
        for (marks, confirmed_for, expected) in [
            (&none, None, Some(ReleaseWithoutCall::Unclaimed)),
            (&none, Some("a.test"), Some(ReleaseWithoutCall::Unclaimed)),
            (&volume, None, None),
            (&volume, Some("a.test"), Some(ReleaseWithoutCall::Confirmed)),
            (&attachment, None, None),
            (&attachment, Some(""), None),
            (&attachment, Some("b.test"), None),
            (&attachment, Some("A.test"), None),
            (&attachment, Some("a.test"), Some(ReleaseWithoutCall::Confirmed)),
        ] {
            assert_eq!(
                unasked(&facts, marks, confirmed_for),
                expected,
                "{marks:?} {confirmed_for:?}"
            );
        }
    }

    /// An engine that ends for it lists everything anew, and the next one must not find the same.
    #[test]
    fn a_confirmation_ends_an_engine_that_another_one_would_decide_unlike() {
        use ReleaseWithoutCall::{AttachNotRequired, Confirmed, Nothing, Unclaimed};
        let spec: AttacherConfigSpec =
            serde_json::from_value(serde_json::json!({ "endpoint": "unix:///csi/csi.sock" })).unwrap();
        let claimed = || Marks {
            attachments: 1,
            ..Marks::default()
        };
        let calls = Capabilities {
            publish_unpublish: true,
            ..Capabilities::default()
        };
        for (release, capabilities, confirmed, marks, expected) in [
            (Unclaimed, Capabilities::default(), true, Marks::default(), false),
            (Unclaimed, Capabilities::default(), true, claimed(), true),
            (Unclaimed, Capabilities::default(), false, claimed(), false),
            (Confirmed, Capabilities::default(), true, Marks::default(), false),
            (Confirmed, Capabilities::default(), false, claimed(), true),
            (AttachNotRequired, Capabilities::default(), true, claimed(), false),
            (Nothing, Capabilities::default(), true, claimed(), true),
            (Nothing, calls, true, claimed(), false),
        ] {
            let facts = DriverFacts::new("a.test", capabilities).releasing(release);
            let mut config = DriverConfig::try_from(&spec).unwrap();
            let confirmed_for = confirmed.then(|| "a.test".to_owned());
            config.capability_lost = CapabilityLost::Stall { confirmed_for };
            let doubted = is_confirmed_otherwise(&facts, &config, || marks.clone());
            assert_eq!(doubted, expected, "{release:?} {confirmed} {marks:?}");
        }
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "a table")]
    fn the_message_names_object_field_and_fix() {
        let one = Marks {
            attachments: 1,
            attachment: Some("va1".into()),
            volume: Some("pv1".into()),
        };
        let many = Marks {
            attachments: 3,
            ..one.clone()
        };
        let volume = Marks {
            attachments: 0,
            attachment: None,
            ..one.clone()
        };
        let required = || {
            Ok(CsiDriver {
                uid: "u".into(),
                attach_required: true,
            })
        };
        let rows = [
            (
                &one,
                required(),
                None,
                "VolumeAttachment va1 carries",
                "has attachRequired: true",
            ),
            (
                &many,
                failed(404),
                None,
                "3 VolumeAttachments, va1 for one, carry",
                "there is no CSIDriver a.test",
            ),
            (
                &volume,
                failed(403),
                None,
                "PersistentVolume pv1 carries",
                "allow get on csidrivers",
            ),
            (
                &volume,
                failed(401),
                None,
                "PersistentVolume pv1 carries",
                "CSIDriver a.test cannot be read, as the API server does not accept the credentials of the operator",
            ),
            (
                &one,
                failed(503),
                Some("b.test"),
                "names \"b.test\", which is not the driver",
                "cannot be read now",
            ),
        ];
        let facts = DriverFacts::new("a.test", Capabilities::default());
        let endpoint = Endpoint::Unix("/csi/csi.sock".into());
        for (marks, csi_driver, confirmed_for, first, second) in &rows {
            let said = words("a-config", &facts, &endpoint, marks, csi_driver, *confirmed_for);
            for part in [
                first,
                second,
                "spec.endpoint (unix:///csi/csi.sock)",
                "kubectl annotate attacherconfig a-config attacher.csi.dev/confirm-capability-lost=a.test --overwrite",
            ] {
                assert!(said.contains(part), "{part:?} in {said}");
            }
            assert!(said.len() < MAX_MESSAGE_BYTES, "{} bytes", said.len());
        }
    }
}
