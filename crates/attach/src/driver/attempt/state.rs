//! What one attempt knows, and how a step of it goes.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::super::context::DriverContext;
use super::super::secret_waiters::Withheld;
use crate::api::validated::DriverConfig;
use crate::apiserver::SecretData;
use crate::cache::{AttacherKey, Snapshot};
use crate::decide::{self, patch::WriteTarget};
use crate::objects::SecretReference;
use crate::queue::{Run, RunResult};
use crate::telemetry::trace::Span;
use crate::traces::{AttemptResult, SharedLifecycle};
use csi_attacher_runtime::fence::FencedClient;

/// How long an attempt rests that waits for lists.
pub(in crate::driver) const LIST_REST: Duration = Duration::from_millis(200);
/// How long an attachment is left alone after the Lease was lost. Its queue ends long before that.
pub(in crate::driver) const LEASE_LOST_REST: Duration = Duration::from_mins(1);

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and no state")]
pub(in crate::driver) struct Attempt<'w> {
    pub work: &'w DriverContext,
    pub run: &'w Run<AttacherKey>,
    pub config: Arc<DriverConfig>,
    pub client: FencedClient,
    /// Opened by the first step that does something: a settled object makes no span.
    pub span: Span,
    /// The lifecycle that the attempt is a part of, when it is traced.
    pub lifecycle: Option<SharedLifecycle>,
    /// How it ended, as far as it has.
    pub ended: AttemptResult,
    pub secrets: Option<SecretData>,
    /// The Secret that the volume names, once it was asked for.
    pub needed_secret: Option<SecretReference>,
    /// Why the driver is not given the Secret that the volume names, if it is not.
    pub denied_secret: Option<Withheld>,
    /// Whether the API server was asked for a volume that the cache does not know.
    pub(super) asked_for_volume: bool,
    /// The same, for the CSINode.
    pub(super) asked_for_node: bool,
    /// Whether the copies that a call rests on were read where they may be of any age.
    pub(super) confirmed: bool,
    /// The object whose last answer did not show what was written.
    pub(super) not_kept: Option<WriteTarget>,
    /// Whether the volume was taken back from where earlier tries may have left it.
    pub retracted: bool,
    /// What became of the last failure on the attachment.
    pub noted: FailureNote,
    /// Whether the API server has taken the result of a call, or may have: its answer did not come.
    pub may_be_on_record: bool,
    /// Calls to the driver that were made. `callsPerSecond` is about these, while the queue counts starts.
    pub calls: AtomicU32,
}

/// Whether a failure is written on its attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::driver) enum FailureNote {
    /// It is, so that the attachment was there.
    Written,
    /// It was not to be written: there were many failures lately. That says nothing about the attachment.
    NotSent,
    /// No answer of the API server says that it is.
    Failed,
}

pub(in crate::driver) enum StepResult {
    Continue,
    Finish(RunResult),
}

pub(super) fn is_settled(snapshot: &Snapshot, work: &DriverContext) -> bool {
    decide::is_settled(&snapshot.attachment, &work.facts)
}
