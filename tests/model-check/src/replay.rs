//! Histories that the simulation replays with the production engine: what its surroundings do, and what must be so after each step.
//!
//! A file of a history has one line of JSON for each step. The first line is the world.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use csi_attacher_model::decide::patch::WriteTarget;
use csi_attacher_model::decide::{VolumeOnNode, Write};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A history.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// The world.
    pub world: World,
    /// The steps.
    pub steps: Vec<Step>,
}

/// A world before anything happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct World {
    /// What it is.
    pub name: String,
    /// The wrong operator that it is about; none with the one that is right.
    pub wrong: Option<String>,
    /// What the history violates, when it is a counterexample.
    pub violates: Option<String>,
    /// The objects.
    pub objects: Vec<Stored>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// In words, with what the engine does because of it.
    pub words: Vec<String>,
    /// What happens.
    pub event: Event,
    /// What must be so when the engine rests.
    pub then: Seen,
}

/// An object of the API server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// Its kind.
    pub kind: ObjectKind,
    /// As the API server holds it.
    pub object: Value,
}

/// The kinds of objects that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ObjectKind {
    /// VolumeAttachment.
    Attachment,
    /// PersistentVolume.
    Volume,
    /// CSINode.
    Node,
}

/// What the surroundings of the engine do. A `key` is the object that an attempt is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A process starts, lists everything and begins to work.
    Starts,
    /// The process dies.
    Dies,
    /// Somebody makes an object or changes it. One that is deleted and held by nobody goes.
    Stores(Stored),
    /// The watch of a kind shows its next event.
    Shows(ObjectKind),
    /// The API server carries out the request of an attempt; the answer does not come in yet.
    Serves {
        /// See above.
        key: String,
    },
    /// The answer to the request of an attempt comes in.
    Answers {
        /// See above.
        key: String,
    },
    /// The connection breaks under a request that was not carried out.
    Loses {
        /// See above.
        key: String,
    },
    /// A write is carried out whose sender does not wait for it.
    ComesLate {
        /// The write, as [`patch`] shows it.
        write: String,
    },
    /// The driver answers a call.
    Driver {
        /// See above.
        key: String,
        /// What it answers.
        answer: DriverAnswer,
    },
    /// The publish Secret is there, or not.
    Secret(bool),
    /// Nothing happens until no attach is held back any longer.
    Waits,
    /// Something that the engine cannot notice.
    Unnoticed,
}

/// What the driver answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriverAnswer {
    /// OK, with the publish context of a Publish.
    Ok(BTreeMap<String, String>),
    /// This gRPC code.
    Fails(i32),
}

/// What can be seen from outside of an engine that rests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// The requests and calls that attempts wait for, by key.
    pub waits: BTreeMap<String, String>,
    /// The objects by name.
    pub objects: BTreeMap<String, Value>,
    /// The calls that began in this step, with the key of the attempt, in the order of the keys.
    pub calls: Vec<(String, String)>,
}

/// A write as it is compared.
pub fn patch(write: &Write) -> String {
    let to = match &write.target {
        WriteTarget::Volume(name) => format!("PersistentVolume {name}"),
        WriteTarget::Attachment(name) => format!("VolumeAttachment {name}"),
        WriteTarget::AttachmentStatus(name) => format!("the status of VolumeAttachment {name}"),
    };
    format!("patches {to}: {}", comparable(&write.body))
}

/// A read as it is compared.
pub fn read(name: &str) -> String {
    format!("reads {name}")
}

/// A call as it is compared.
pub fn call(publishes: bool, at: VolumeOnNode<'_>) -> String {
    let method = if publishes { "Publish" } else { "Unpublish" };
    format!("Controller{method}Volume of {} at {}", at.volume_id, at.node_id)
}

/// What was answered and is still on its way.
pub fn answered(request: &str) -> String {
    format!("{request} (answered)")
}

/// The same without the text and the time of errors: the model has no time, and its failures have other words.
pub fn comparable(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let part = |(name, value): (&String, &Value)| {
                let is_error = matches!(&**name, "attachError" | "detachError") && !value.is_null();
                let value = if is_error { "an error".into() } else { comparable(value) };
                (name.clone(), value)
            };
            fields.iter().map(part).collect()
        }
        Value::Array(list) => list.iter().map(comparable).collect(),
        other => other.clone(),
    }
}

impl History {
    /// The event list.
    pub fn to_text(&self) -> serde_json::Result<String> {
        let mut text = serde_json::to_string(&self.world)?;
        for step in &self.steps {
            // Writing to a String cannot fail.
            write!(text, "\n{}", serde_json::to_string(step)?).ok();
        }
        text.push('\n');
        Ok(text)
    }

    /// Reads an event list.
    pub fn of_text(text: &str) -> serde_json::Result<Self> {
        let mut lines = text.lines();
        let world = serde_json::from_str(lines.next().unwrap_or_default())?;
        let steps = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Self { world, steps })
    }

    /// The same for people: one line for each step, and the reasons below it.
    pub fn story(&self) -> String {
        let mut text = format!("{}\n", self.world.name);
        for (number, step) in self.steps.iter().enumerate() {
            let words = step.words.join("\n        ");
            writeln!(text, "    {:>2}. {words}", number + 1).ok();
        }
        text
    }
}
