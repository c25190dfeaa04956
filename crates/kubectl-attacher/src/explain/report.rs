//! What an explanation is made of. The serialised form is the schema of `-o json` and `-o yaml`, which is documented and stable.

use jiff::Timestamp;
use serde::Serialize;

use super::Case;
use crate::observed::Gap;

/// The version of the serialised form.
pub const SCHEMA: &str = "attacher.csi.dev/why-v1";

/// The object that a question or a step is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectName {
    /// Kind.
    pub kind: &'static str,
    /// Namespace, of an object that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

impl ObjectName {
    /// An object without a namespace.
    pub fn cluster(kind: &'static str, name: impl Into<String>) -> Self {
        Self {
            kind,
            namespace: None,
            name: name.into(),
        }
    }

    /// An object with a namespace.
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
    /// The object of the question.
    pub subject: ObjectName,
    /// The worst of the chains.
    pub verdict: Verdict,
    /// What can be said of the object itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// One for each volume and node.
    pub chains: Vec<Chain>,
    /// What could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
}

impl Explanation {
    /// An answer about an object.
    pub fn new(subject: ObjectName, steps: Vec<Step>, chains: Vec<Chain>, gaps: Vec<Gap>) -> Self {
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

/// Whether a step holds.
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
    /// The object.
    pub object: ObjectName,
    /// Whether it is as it has to be.
    pub state: StepState,
    /// What it shows.
    pub text: String,
}

impl Step {
    /// A step in some state.
    pub fn new(state: StepState, object: ObjectName, text: impl Into<String>) -> Self {
        Self {
            object,
            state,
            text: text.into(),
        }
    }

    /// A step that holds.
    pub fn done(object: ObjectName, text: impl Into<String>) -> Self {
        Self::new(StepState::Done, object, text)
    }

    /// A step that is worth knowing.
    pub fn note(object: ObjectName, text: impl Into<String>) -> Self {
        Self::new(StepState::Note, object, text)
    }

    /// A step that could not be read.
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
    /// The text.
    pub message: String,
    /// When it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// The last attempt, which only an Event tells of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LastAttempt {
    /// Its number.
    pub number: u32,
    /// When it failed.
    pub at: Timestamp,
    /// When the next one is due.
    pub next: Timestamp,
}

/// Who has the volume that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderReport {
    /// The node.
    pub node: String,
    /// The VolumeAttachment.
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
    /// The command that does it.
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
    /// What happens, in one sentence.
    pub summary: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// The last attempt; absent when its Event has expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_attempt: Option<LastAttempt>,
    /// Who has the volume.
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
            command: Some(command.into()).filter(|command| is_plain(command)),
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

/// Whether a shell takes each word of a command as it is, but for the quoted patch at its end.
fn is_plain(command: &str) -> bool {
    let (words, patch) = match command.split_once(" -p '") {
        Some((words, patch)) => (words, Some(patch)),
        None => (command, None),
    };
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b" ._:/=@,-".contains(&byte);
    // A name with a blank in it may look like more words.
    let is_flag = |word: &str| !word.starts_with('-') || FLAGS.contains(&word);
    let is_json = |byte: u8| byte.is_ascii_alphanumeric() || b"{}[]\":,.- ".contains(&byte);
    let is_quoted = |patch: &str| patch.strip_suffix('\'').is_some_and(|json| json.bytes().all(is_json));
    words.bytes().all(is_word) && words.split(' ').all(is_flag) && patch.is_none_or(is_quoted)
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn a_command_with_a_name_that_means_something_to_a_shell_is_not_shown() {
        for command in [
            "kubectl describe pvc data-0 --namespace web",
            "kubectl patch atc ebs --type=merge -p '{\"spec\":{\"suspend\":false}}'",
        ] {
            assert!(is_plain(command), "{command}");
        }
        for name in [
            "x;touch /tmp/pwn",
            "$(id)",
            "`id`",
            "a|b",
            "a\nb",
            "a' -p '{}",
            "x -p '$(id)'",
            "<x",
            "a&b",
            "\u{1b}[31m",
            "n --server=https://evil",
            "-n",
        ] {
            let command = format!("kubectl describe pvc {name} --namespace default");
            assert!(!is_plain(&command), "{command}");
        }
    }
}
