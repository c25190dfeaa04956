//! The identity of a life cycle's trace, derived from the object that it is about.
//!
//! Attaching and detaching a volume last longer than a process: the operator restarts, or another replica takes over. As
//! the ids follow from the UID of the VolumeAttachment alone, whoever comes next goes on with the same trace and nothing
//! has to be stored. The API server makes the UID, so that nobody can choose an id, and its digest is uniform, as
//! samplers by ratio need it. Pure: must not read a clock or know where spans go.

use aws_lc_rs::digest::{Context, SHA256};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use std::time::Duration;

use super::w3c;
use csi_attacher_model::api::validated::Tracing;

/// What the digest begins with, so that no other use of the same UID comes to the same ids.
const DOMAIN: &[u8] = b"attacher.trace.v1";

/// Epochs that are looked for in an annotation; a trace that was continued so often stays in the last one.
const MAX_EPOCHS: u32 = 1000;

/// How a life cycle ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifecycleOutcome {
    /// What was asked for is done.
    Succeeded,
    /// Nobody wants it any more, or nobody goes on with it: why.
    Aborted(&'static str),
    /// It goes on in the next epoch.
    Continued,
}

impl LifecycleOutcome {
    /// As `attacher.outcome` has it, and why what was asked for was not reached, if it was not.
    pub const fn words(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Succeeded => ("succeeded", None),
            Self::Aborted(why) => ("aborted", Some(why)),
            Self::Continued => ("continued", Some("not complete yet; continues in the linked trace")),
        }
    }
}

/// The ids of one epoch of a life cycle: the trace and its root span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceIdentity {
    /// Id of the trace.
    pub trace_id: TraceId,
    /// Id of its root span.
    pub root_id: SpanId,
}

impl TraceIdentity {
    /// The ids of epoch `epoch` of what is done (`attach` or `detach`) with the VolumeAttachment of this UID.
    pub fn derive(operation: &str, uid: &str, epoch: u32) -> Self {
        let mut digest = Context::new(&SHA256);
        let epoch = epoch.to_string();
        digest.update(DOMAIN);
        for part in [operation, uid, &epoch] {
            digest.update(b"\0");
            digest.update(part.as_bytes());
        }
        let digest = digest.finish();
        let (mut trace, mut root) = ([0; 16], [0; 8]);
        for (to, from) in trace.iter_mut().chain(&mut root).zip(digest.as_ref()) {
            *to = *from;
        }
        Self {
            trace_id: TraceId::from_bytes(trace),
            root_id: SpanId::from_bytes(root),
        }
    }

    /// The context of the root span.
    pub fn context(self, sampled: bool) -> SpanContext {
        let flags = TraceFlags::default().with_sampled(sampled);
        SpanContext::new(self.trace_id, self.root_id, flags, true, TraceState::default())
    }
}

/// Whether the trace of an epoch, known since `age`, is as large or as old as it may be, so that the next epoch begins. One without an
/// attempt is not, or every epoch of what is rarely tried would be empty.
pub fn is_full(limits: &Tracing, epoch: u32, attempts: u32, age: Duration) -> bool {
    attempts > 0 && epoch + 1 < MAX_EPOCHS && (attempts >= limits.max_attempts.get() || age > limits.max_age)
}

/// The epoch of `operation` that an annotation of the operator names; none when it is about the `other` operation, or somebody else
/// wrote it.
pub fn epoch_of(annotation: &str, operation: &str, other: &str, uid: &str) -> Option<u32> {
    find_epoch(annotation, operation, other, |operation, epoch| {
        TraceIdentity::derive(operation, uid, epoch)
    })
}

/// Each id costs a digest. A detach finds what the attach has left, almost always of its first epoch: that it is so is found
/// out beside the search, and ends it.
fn find_epoch(
    annotation: &str,
    operation: &str,
    other: &str,
    mut derive: impl FnMut(&str, u32) -> TraceIdentity,
) -> Option<u32> {
    let noted = w3c::parse(annotation)?;
    let mut is_noted = |operation, epoch| {
        let own = derive(operation, epoch);
        noted.span_id() == own.root_id && noted.trace_id() == own.trace_id
    };
    for epoch in 0..MAX_EPOCHS {
        if is_noted(operation, epoch) {
            return Some(epoch);
        }
        if is_noted(other, epoch) {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const UID: &str = "6f7a2c1e-1c55-4f0a-9d5e-8a4a3a0f2b11";

    /// Computed by `printf 'attacher.trace.v1\0attach\0<uid>\0000' | sha256sum`: a change here breaks the traces of what is
    /// pending during an upgrade.
    #[test]
    fn the_ids_stay_what_they_are() {
        let id = TraceIdentity::derive("attach", UID, 0);
        assert_eq!(format!("{:032x}", id.trace_id), KNOWN_TRACE);
        assert_eq!(format!("{:016x}", id.root_id), KNOWN_ROOT);
    }

    const KNOWN_TRACE: &str = "6f69c1c85af792f45b553edf7df5ed4f";
    const KNOWN_ROOT: &str = "3598b797c9b7f6cf";

    #[test]
    fn operation_uid_and_epoch_all_count() {
        let mut seen = HashSet::new();
        for operation in ["attach", "detach"] {
            for uid in ["a", "b", UID] {
                for epoch in [0, 1, 10, 11, 100] {
                    let id = TraceIdentity::derive(operation, uid, epoch);
                    assert!(id.context(true).is_valid());
                    assert!(
                        seen.insert(id.trace_id)
                            && seen.insert(TraceId::from(u128::from(u64::from_be_bytes(id.root_id.to_bytes()))))
                    );
                }
            }
        }
    }

    #[test]
    fn only_our_own_annotation_tells_an_epoch() {
        for epoch in [0, 1, 49, MAX_EPOCHS - 1] {
            let text = w3c::traceparent(&TraceIdentity::derive("attach", UID, epoch).context(epoch % 2 == 0));
            assert_eq!(epoch_of(&text, "attach", "detach", UID), Some(epoch));
            assert_eq!(epoch_of(&text, "detach", "attach", UID), None);
            assert_eq!(epoch_of(&text, "attach", "detach", "another"), None);
        }
        let beyond = w3c::traceparent(&TraceIdentity::derive("attach", UID, MAX_EPOCHS).context(true));
        let stranger = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        for text in ["", "garbage", stranger, &beyond] {
            assert_eq!(epoch_of(text, "attach", "detach", UID), None, "{text}");
        }
    }

    /// Every detach of a traced attachment searches in what its attach has left.
    #[test]
    fn an_annotation_of_the_other_operation_costs_two_digests() {
        for (left, wanted, other, digests) in [
            ("attach", "attach", "detach", 1),
            ("attach", "detach", "attach", 2),
            ("detach", "attach", "detach", 2),
        ] {
            let text = w3c::traceparent(&TraceIdentity::derive(left, UID, 0).context(true));
            let mut made = 0;
            let found = find_epoch(&text, wanted, other, |operation, epoch| {
                made += 1;
                TraceIdentity::derive(operation, UID, epoch)
            });
            assert_eq!((found, made), ((left == wanted).then_some(0), digests), "{wanted}");
        }
    }

    proptest! {
        /// Half of all traces lie in the lower half of what a sampler by ratio looks at.
        #[test]
        fn ids_are_uniform_enough_to_sample_by(seed in any::<u64>()) {
            let low = (0..400).filter(|number| {
                let id = TraceIdentity::derive("attach", &format!("{seed}-{number}"), 0);
                id.trace_id.to_bytes()[8] < 0x80
            });
            // Six standard deviations.
            prop_assert!((140..=260).contains(&low.count()));
        }
    }
}
