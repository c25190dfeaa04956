//! What an explanation is made of. The serialised form is the schema of `-o json` and `-o yaml`, which is documented and stable.

use csi_attacher_model::decide::is_plain_command;
use jiff::Timestamp;
use serde::Serialize;

use super::Case;
use crate::observed::{Gap, GapReason};

/// The version of the serialised form.
const SCHEMA: &str = "attacher.csi.dev/why-v1";

/// The object that a question or a step is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectName {
    pub kind: &'static str,
    /// Namespace, of an object that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub name: String,
}

impl ObjectName {
    pub fn cluster(kind: &'static str, name: impl Into<String>) -> Self {
        Self {
            kind,
            namespace: None,
            name: name.into(),
        }
    }

    pub fn namespaced(kind: &'static str, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind,
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }
}

impl std::fmt::Display for ObjectName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// How things are, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Verdict {
    /// Nothing is to be done.
    Healthy,
    /// It goes on by itself.
    InProgress,
    /// What could be read does not say.
    Unknown,
    /// A step blocks.
    Blocked,
}

/// The answer to one question.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Always [`SCHEMA`].
    pub schema: &'static str,
    pub subject: ObjectName,
    /// The worst of the chains.
    pub verdict: Verdict,
    /// What can be said of the object itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// One for each volume and node.
    pub chains: Vec<Chain>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
}

impl Explanation {
    /// An answer about an object. Where it cannot be told for what could not be read, it says what to do about that.
    pub fn new(subject: ObjectName, steps: Vec<Step>, mut chains: Vec<Chain>, gaps: Vec<Gap>) -> Self {
        let unseen = chains.iter_mut().map(|chain| &mut chain.diagnosis);
        for diagnosis in unseen.filter(|diagnosis| diagnosis.case == Case::NotVisible) {
            diagnosis.advice.extend(about(&gaps));
        }
        let worst = chains.iter().map(|chain| chain.diagnosis.verdict).max();
        Self {
            schema: SCHEMA,
            subject,
            verdict: worst.unwrap_or(Verdict::Healthy),
            steps,
            chains,
            gaps,
        }
    }

    /// The same with each command changed, as for flags that all of them need.
    #[must_use]
    pub fn with_commands(mut self, change: impl Fn(&str) -> String) -> Self {
        let advice = self.chains.iter_mut().flat_map(|chain| &mut chain.diagnosis.advice);
        for command in advice.filter_map(|advice| advice.command.as_mut()) {
            *command = change(command);
        }
        self
    }
}

/// What to do about what could not be read.
fn about(gaps: &[Gap]) -> impl Iterator<Item = Advice> {
    let is_forbidden = |gap: &Gap| gap.reason == GapReason::Forbidden;
    let forbidden = gaps.iter().any(is_forbidden);
    let failed = gaps.iter().any(|gap| !is_forbidden(gap));
    let permissions = forbidden.then_some("grant the permissions that are named below, or ask somebody who has them");
    let requests = failed.then_some("find out why the requests failed that are named below, and ask again");
    permissions.into_iter().chain(requests).map(|text| Advice {
        text: text.to_owned(),
        command: None,
    })
}

/// The way of one volume to, or from, one node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chain {
    /// The PersistentVolume, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The node, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The driver, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The VolumeAttachment, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
    /// The trace of its attempts, if the operator traces.
    #[serde(rename = "traceID", skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// What was looked at, in the order in which it has to hold.
    pub steps: Vec<Step>,
    /// Where it stands.
    pub diagnosis: Diagnosis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum StepState {
    /// It does.
    Done,
    /// It will, without help.
    Waiting,
    /// It does not, and holds up the rest.
    Blocked,
    /// It could not be read.
    Unknown,
    /// It is worth knowing and holds up nothing.
    Note,
}

/// One object on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    pub object: ObjectName,
    /// Whether it is as it has to be.
    pub state: StepState,
    pub text: String,
}

impl Step {
    pub fn new(state: StepState, object: ObjectName, text: impl Into<String>) -> Self {
        Self {
            object,
            state,
            text: text.into(),
        }
    }

    pub fn done(object: ObjectName, text: impl Into<String>) -> Self {
        Self::new(StepState::Done, object, text)
    }

    /// A step that is worth knowing.
    pub fn note(object: ObjectName, text: impl Into<String>) -> Self {
        Self::new(StepState::Note, object, text)
    }

    pub fn unknown(object: ObjectName) -> Self {
        Self::new(StepState::Unknown, object, "could not be read")
    }
}

/// The last error that an attacher wrote on a VolumeAttachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LastError {
    /// Name of the gRPC code, if the driver answered with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// The last attempt, which only an Event tells of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LastAttempt {
    pub number: u32,
    pub at: Timestamp,
    pub next: Timestamp,
}

/// Who has the volume that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderReport {
    pub node: String,
    pub attachment: String,
    /// Pods that use the volume there, as `namespace/name`.
    pub pods: Vec<String>,
}

/// What a person can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// What, and under which condition.
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// Where a volume stands on its way, and what goes on from there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// Which case it is; the names are stable.
    pub case: Case,
    /// How bad that is.
    pub verdict: Verdict,
    pub summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// The last attempt; absent when its Event has expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<LastAttempt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<HolderReport>,
    /// What the attacher, or another controller, does next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What a person can do, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
}

impl Diagnosis {
    /// A case with its usual verdict.
    pub fn new(case: Case, summary: impl Into<String>) -> Self {
        Self {
            case,
            verdict: case.verdict(),
            summary: summary.into(),
            since: None,
            last_error: None,
            last_attempt: None,
            holder: None,
            next: None,
            advice: Vec::new(),
        }
    }

    /// Since when it is so.
    #[must_use]
    pub fn since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since;
        self
    }

    /// What happens next without a person.
    #[must_use]
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// What a person can do.
    #[must_use]
    pub fn advise(mut self, text: impl Into<String>) -> Self {
        self.advice.push(Advice {
            text: text.into(),
            command: None,
        });
        self
    }

    /// The same, by a command. One with a name in it that means something to a shell is left out: the API server checks few names that
    /// objects refer to.
    #[must_use]
    pub fn run(mut self, text: impl Into<String>, command: impl Into<String>) -> Self {
        self.advice.push(Advice {
            text: text.into(),
            command: Some(command.into()).filter(|command| is_plain_command(command, &FLAGS)),
        });
        self
    }
}

/// The flags of the commands that are shown.
const FLAGS: [&str; 7] = [
    "--selector",
    "--namespace",
    "--type=merge",
    "--all-namespaces",
    "--field-selector",
    "--output",
    "-o",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::chain;
    use crate::explain::tests::builders::unrequested;
    use crate::observed::Lookup;

    /// No permission helps against an API server that does not answer, or files that cannot be opened.
    #[test]
    fn permissions_are_asked_for_only_where_one_is_missing() {
        let gap = |reason| Gap {
            verb: "list",
            group: "storage.k8s.io".to_owned(),
            resource: "volumeattachments".to_owned(),
            namespace: None,
            reason,
        };
        let failed = || gap(GapReason::Failed("too many open files".to_owned()));
        for (gaps, permissions, requests) in [
            (vec![gap(GapReason::Forbidden)], true, false),
            (vec![failed()], false, true),
            (vec![failed(), gap(GapReason::Forbidden)], true, true),
            (vec![], false, false),
        ] {
            let unseen = chain(&unrequested(|scene| scene.attachment = Lookup::Unknown));
            let subject = ObjectName::cluster("PersistentVolume", "pv1");
            let explained = Explanation::new(subject, Vec::new(), vec![unseen], gaps);
            let diagnosis = &explained.chains[0].diagnosis;
            assert_eq!(diagnosis.case, Case::NotVisible);
            let says = |word: &str| diagnosis.advice.iter().any(|advice| advice.text.contains(word));
            assert_eq!((says("permissions"), says("requests failed")), (permissions, requests));
        }
    }

    /// What such a name is, the model says and tests. The flags are ours.
    #[test]
    fn a_command_with_a_name_that_means_something_to_a_shell_is_not_shown() {
        let shown = |command: &str| {
            let advised = Diagnosis::new(Case::Attached, "").run("", command);
            advised.advice[0].command.is_some()
        };
        for command in [
            "kubectl describe pvc data-0 --namespace web",
            "kubectl patch atc ebs --type=merge -p '{\"spec\":{\"suspend\":false}}'",
        ] {
            assert!(shown(command), "{command}");
        }
        for name in ["$(id)", "x -p '$(id)'", "n --server=https://evil", "-n"] {
            assert!(
                !shown(&format!("kubectl describe pvc {name} --namespace default")),
                "{name}"
            );
        }
    }
}
