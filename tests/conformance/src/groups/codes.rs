//! Every gRPC code, as answered to ControllerPublishVolume and, for some, to ControllerUnpublishVolume.

use tonic::Code;

use csi_mock_driver::Method;

use crate::scenario::{Group, Outcome, Scenario, demand, same};
use crate::test::Test;

/// The codes with their names in Go, which people and dashboards know from the message.
const CODES: [(Code, &str); 16] = [
    (Code::Cancelled, "Canceled"),
    (Code::Unknown, "Unknown"),
    (Code::InvalidArgument, "InvalidArgument"),
    (Code::DeadlineExceeded, "DeadlineExceeded"),
    (Code::NotFound, "NotFound"),
    (Code::AlreadyExists, "AlreadyExists"),
    (Code::PermissionDenied, "PermissionDenied"),
    (Code::ResourceExhausted, "ResourceExhausted"),
    (Code::FailedPrecondition, "FailedPrecondition"),
    (Code::Aborted, "Aborted"),
    (Code::OutOfRange, "OutOfRange"),
    (Code::Unimplemented, "Unimplemented"),
    (Code::Internal, "Internal"),
    (Code::Unavailable, "Unavailable"),
    (Code::DataLoss, "DataLoss"),
    (Code::Unauthenticated, "Unauthenticated"),
];

pub fn scenarios() -> Vec<Scenario> {
    let mut publish = Group::new("publish-codes");
    for (code, name) in CODES {
        let demand = publish.demands(format!("{name} is shown and retried"));
        publish = demand.scenario(name, move |t| attach(t, code, name));
    }
    let mut unpublish = Group::new("unpublish-codes");
    for (code, name) in CODES {
        let demand = unpublish.demands(format!("{name} is shown and retried; the finalizer stays"));
        unpublish = demand.safety(name, move |t| detach(t, code, name));
    }
    publish.done().into_iter().chain(unpublish.done()).collect()
}

async fn attach(t: Test, code: Code, name: &str) -> Outcome {
    t.script(t.on_publish().fail(code, "the disk is \"away\""));
    t.given_all(|_| {}).await?;
    let wanted = format!("rpc error: code = {name} desc = the disk is \"away\"");
    let error = t.attach_error(&wanted).await?;
    let number = i32::from(code);
    // The kubelet looks at code 8 (KEP-4876); the others may be left out.
    let legal = error.error_code == Some(number) || (code != Code::ResourceExhausted && error.error_code.is_none());
    demand(legal, || format!("errorCode is {:?}, want {number}", error.error_code))?;
    demand(error.time.is_some(), || "the error has no time".to_owned())?;
    t.heal();
    t.attached().await?;
    t.published()
}

async fn detach(t: Test, code: Code, name: &str) -> Outcome {
    t.given_attached().await?;
    t.script(t.on_unpublish().fail(code, "the disk is busy"));
    t.delete_attachment().await?;
    let wanted = format!("rpc error: code = {name} desc = the disk is busy");
    let attachment = t.detach_error(&wanted).await?;
    t.has_finalizer(&attachment)?;
    t.published()?;
    let seen = t.unpublishes().iter().map(|call| call.id).max();
    t.call(Method::ControllerUnpublishVolume, "again", move |call| {
        Some(call.id) > seen
    })
    .await?;
    t.has_finalizer(&t.get_attachment().await?)?;
    t.heal();
    t.attachment_gone().await?;
    same("attached at the driver", &t.is_published(), &false)
}
