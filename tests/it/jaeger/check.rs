//! What a trace of an attach must be.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::{APISERVER, ATTEMPT, ETCD, LIMIT, PUBLISH, ROOT, SERVICE, Scene, told_context};
use crate::support::jaeger::{Span, Trace, tree};
use crate::support::{AuditEvent, Result};

/// An attach that succeeds at the third attempt.
const CODES: [&str; 3] = ["UNAVAILABLE", "UNAVAILABLE", "OK"];
const PV: &str = "PATCH /api/v1/persistentvolumes/{:name}";
const VA: &str = "PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}";
const STATUS: &str = "PATCH /apis/storage.k8s.io/v1/volumeattachments/{:name}/status";

impl Scene {
    /// Waits until the whole trace of an attach is there, with what the API server and etcd have to add, and checks it.
    /// Returns the trace, and how long after the API server had written `attached` Jaeger was asked for the operator's own
    /// spans and did not have all of them; zero if it had them at the first question.
    pub async fn complete_trace(&self, attachment: &VolumeAttachment) -> Result<(Trace, SignedDuration)> {
        let (id, _) = told_context(attachment);
        let own = |trace: &Trace| !trace.named(ROOT).is_empty() && trace.named(ATTEMPT).len() >= CODES.len();
        let arrival = self.jaeger.wait_for_arrival(&id, "its own spans", LIMIT, own);
        let (_, in_vain) = arrival.await?;
        let attached = self.written_attached(attachment).await?;
        let missing = in_vain.map_or(SignedDuration::ZERO, |asked| asked.duration_since(attached));
        // The API server exports its spans in larger batches.
        let joined = |trace: &Trace| {
            let writes = writes(trace);
            writes.iter().all(|write| answered_by(trace, write, APISERVER)) && of_etcd(trace) >= writes.len()
        };
        let trace = self
            .jaeger
            .wait_for_trace(&id, "those of the API server", LIMIT, joined)
            .await?;
        check(&trace, attachment);
        self.assert_only(&trace, attachment).await?;
        Ok((trace, missing))
    }

    /// When the API server had written that the volume is attached.
    async fn written_attached(&self, attachment: &VolumeAttachment) -> Result<Timestamp> {
        let name = attachment.metadata.name.clone().unwrap_or_default();
        let is_it = move |event: &AuditEvent| {
            let answer = event.response_body.as_ref();
            event.is("patch", "volumeattachments/status")
                && event.name == name
                && answer.and_then(|answer| answer.pointer("/status/attached")) == Some(&true.into())
        };
        let written = self.stage.cluster.wait_for_audit_event("attached", LIMIT, is_it);
        Ok(written.await?.stage_timestamp)
    }

    /// No other trace knows of attaching this.
    async fn assert_only(&self, trace: &Trace, attachment: &VolumeAttachment) -> Result<()> {
        let uid = attachment.metadata.uid.as_deref().unwrap_or_default();
        let tags = [("k8s.volumeattachment.uid", uid)];
        let all = self.jaeger.find(SERVICE, &tags).await?;
        let ids: Vec<&str> = all.iter().map(|trace| trace.id.as_str()).collect();
        assert_eq!(ids, [&trace.id]);
        Ok(())
    }
}

fn check(trace: &Trace, attachment: &VolumeAttachment) {
    let text = tree::render(trace);
    let (id, root_id) = told_context(attachment);
    assert_eq!(trace.id, id);
    let roots = trace.roots();
    assert_eq!(roots.len(), 1, "{text}");
    let root = roots[0];
    assert_eq!((root.name.as_str(), &root.id), (ROOT, &root_id), "{text}");
    assert_eq!(root.text("span.kind"), "internal");
    assert_eq!(root.text("attacher.outcome"), "succeeded");
    assert!(!root.failed(), "it ended well: {text}");
    for span in &trace.spans {
        let mut warnings = span.warnings.iter().filter(|warning| !is_of_answers(span, warning));
        assert!(warnings.next().is_none(), "{}: {:?}", span.name, span.warnings);
    }
    let attempts = trace.children(root);
    assert!(attempts.iter().all(|span| span.name == ATTEMPT), "{text}");
    check_attempts(trace, &attempts, attachment);
    check_depth(trace);
}

/// Whether it is of no account: a server may end its span when its caller has read the answer and ended its own already, and
/// kube-apiserver ends spans of its own filters after those that they are part of. Jaeger takes both for clocks that differ.
fn is_of_answers(span: &Span, warning: &str) -> bool {
    span.service != SERVICE && warning.starts_with("clock skew adjustment disabled")
}

fn check_attempts(trace: &Trace, attempts: &[&Span], attachment: &VolumeAttachment) {
    let text = tree::render(trace);
    assert_eq!(attempts.len(), CODES.len(), "{text}");
    assert_eq!(
        trace.named(ATTEMPT).len(),
        CODES.len(),
        "all of them are siblings: {text}"
    );
    for (attempt, code) in attempts.iter().zip(CODES) {
        assert_eq!(attempt.text("span.kind"), "consumer");
        assert_eq!(
            attempt.text("k8s.volumeattachment.uid"),
            attachment.metadata.uid.clone().unwrap_or_default()
        );
        assert_eq!(attempt.failed(), code != "OK", "{text}");
        let below = trace.children(attempt);
        assert!(below.iter().all(|span| span.text("span.kind") == "client"), "{text}");
        let calls: Vec<&&Span> = below.iter().filter(|span| span.name == PUBLISH).collect();
        let codes: Vec<String> = calls.iter().map(|call| call.text("rpc.response.status_code")).collect();
        assert_eq!(codes, [code], "{text}");
        let statuses = below.iter().filter(|span| span.name == STATUS).count();
        assert_eq!(statuses, 1, "each attempt tells how it went: {text}");
    }
    // An operator that hears of the attachment before it hears of the volume or the node asks for these.
    let steps: Vec<&str> = trace
        .children(attempts[0])
        .iter()
        .map(|span| span.name.as_str())
        .filter(|name| !name.starts_with("GET "))
        .collect();
    assert_eq!(steps, [PV, VA, PUBLISH, STATUS], "{text}");
}

/// The requests that the operator sent to the API server in this trace.
fn writes(trace: &Trace) -> Vec<&Span> {
    let own = trace.of_service(SERVICE).into_iter();
    own.filter(|span| span.name.starts_with("PATCH ")).collect()
}

/// Whether a span of this service is the direct child of a request.
fn answered_by(trace: &Trace, request: &Span, service: &str) -> bool {
    let children = trace.children(request);
    children
        .iter()
        .any(|span| span.service == service && span.text("span.kind") == "server")
}

/// How many spans of etcd are in the trace, each below a request of the API server. A failure in the same second as the
/// one before changes nothing, which the API server finds by a read instead of a transaction.
fn of_etcd(trace: &Trace) -> usize {
    let spans = trace.of_service(ETCD).into_iter();
    let below = |span: &&Span| trace.parent_of(span).is_some_and(|parent| parent.service == APISERVER);
    spans.filter(below).count()
}

/// Root, attempt, request, and nothing below or beside.
fn check_depth(trace: &Trace) {
    for span in trace.of_service(SERVICE) {
        let mut depth = 1;
        let mut above = span;
        while let Some(parent) = trace.parent_of(above) {
            (depth, above) = (depth + 1, parent);
        }
        assert!(depth <= 3, "{} is at depth {depth}: {}", span.name, tree::render(trace));
    }
}
