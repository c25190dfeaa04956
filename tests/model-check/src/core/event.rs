//! What happens in a step, and the words for it.

use super::Core;
use super::attempt::At;
use super::objects::Kind;
use super::state::{Orphan, Request, Told};
use super::world::User;

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process takes the Lease and lists everything.
    TakesTheLease { replica: usize },
    /// A process begins an attempt; `expired` when an attach was held back for as long as is good.
    Looks { at: At, expired: bool },
    /// A watch shows something to a process.
    Shows { replica: usize, told: Told },
    /// The API server carries out the write that an attempt waits for.
    Takes { at: At, write: u32 },
    /// The API server reads the object that an attempt waits for.
    Reads { at: At, slot: u8 },
    /// An attempt gets the answer to its request.
    Answers { at: At, request: Request },
    /// A write gets no answer that counts: it is carried out later or never.
    Loses { at: At, write: u32 },
    /// A read gets no answer.
    LosesRead { at: At },
    /// The answer to a write is a 404 that is not true.
    Lies { at: At },
    /// A write whose sender does not wait for it is carried out.
    ComesLate { write: u32 },
    /// It never is.
    NeverComes { write: u32 },
    /// The driver answers OK to a call.
    CallSucceeds { at: At, call: Orphan },
    /// The driver refuses a call with a code that says that nothing was done.
    CallRefused { at: At, call: Orphan },
    /// The driver does not answer a call in time.
    CallHangs { at: At, call: Orphan },
    /// The driver does what a caller asked for that does not wait for it.
    DoneLate { call: Orphan },
    /// It gives that up.
    GivenUp { call: Orphan },
    /// Somebody does something.
    Does(User),
    /// The publish Secret is there, or not.
    Secret { there: bool },
    /// The driver has ControllerPublishVolume, or not.
    Capable { capable: bool },
    /// A process dies and starts again.
    Dies { replica: usize },
    /// A process stands still until its Lease has run out.
    LosesTheLease { replica: usize },
}

impl Core {
    /// An event in words.
    pub(super) fn in_words(&self, event: Event) -> String {
        let name = |slot: u8| self.universe.name(slot);
        let who = |at: At| format!("operator{} at {}", at.replica, name(at.slot));
        match event {
            Event::TakesTheLease { replica } => format!("operator{replica} takes the Lease and lists everything"),
            Event::Looks { at, expired } => {
                let late = if expired {
                    ", for which it has waited long enough"
                } else {
                    ""
                };
                format!("operator{} looks at {}{late}", at.replica, name(at.slot))
            }
            Event::Shows { replica, told } => {
                let what = if told.ends { "the end of" } else { "a change of" };
                format!("the watch of operator{replica} shows {what} {}", name(told.slot))
            }
            Event::Takes { at, write } => format!("the API server takes {} of {}", self.shown_write(write), who(at)),
            Event::Reads { at, slot } => format!("the API server shows {} to {}", name(slot), who(at)),
            Event::Answers { at, request } => format!("{} gets its answer: {}", who(at), self.shown(request)),
            Event::Loses { at, write } => format!("FAULT: no answer to {} of {}", self.shown_write(write), who(at)),
            Event::LosesRead { at } => format!("FAULT: no answer to a read of {}", who(at)),
            Event::Lies { at } => format!("FAULT: an untrue 404 for {}", who(at)),
            Event::ComesLate { write } => format!("{} arrives late", self.shown_write(write)),
            Event::NeverComes { write } => format!("{} never arrives", self.shown_write(write)),
            Event::CallSucceeds { at, .. } => format!("the driver answers OK to {}", who(at)),
            Event::CallRefused { at, .. } => format!("FAULT: the driver refuses the call of {}", who(at)),
            Event::CallHangs { at, .. } => format!("FAULT: no answer in time to the call of {}", who(at)),
            Event::DoneLate { call } => format!(
                "the driver {} at {} though its caller has gone",
                does(call),
                self.universe.at(call.place).node_id
            ),
            Event::GivenUp { call } => format!("the driver {} nothing for a caller that has gone", does(call)),
            Event::Does(user) => format!("somebody: {user:?}"),
            Event::Secret { there: true } => "the Secret is made again".to_owned(),
            Event::Secret { there: false } => "FAULT: the Secret is deleted".to_owned(),
            Event::Capable { capable: true } => "the driver has its capability again".to_owned(),
            Event::Capable { capable: false } => "FAULT: the driver answers without PUBLISH_UNPUBLISH".to_owned(),
            Event::Dies { replica } => format!("FAULT: operator{replica} dies, and starts again"),
            Event::LosesTheLease { replica } => {
                format!("FAULT: operator{replica} stands still, and its Lease runs out")
            }
        }
    }

    /// A write in few words.
    pub(super) fn shown_write(&self, write: u32) -> String {
        let (slot, status) = self.universe.target(write);
        let body = self.universe.write(write).body.to_string();
        let what = match (self.universe.kind(slot), status) {
            (Kind::Volume, _) if body.contains("remove") => "the release",
            (Kind::Volume, _) => "the protection",
            (_, true) if body.contains("\"attached\":true") => "the record as attached",
            (_, true) if body.contains("\"attached\":false") => "the record as detached",
            (_, true) => "an error",
            (_, false) if body.contains("\"remove\"") => "the end of the claim",
            (_, false) if !body.contains("node-id") => "the renewed claim",
            (_, false) => "the claim",
        };
        format!("{what} of {}", self.universe.name(slot))
    }

    fn shown(&self, request: Request) -> String {
        match request {
            Request::Object(object) => format!(
                "version {}",
                self.universe.object(object).value["metadata"]["resourceVersion"]
            ),
            other => format!("{other:?}"),
        }
    }
}

fn does(call: Orphan) -> &'static str {
    if call.publishes { "publishes" } else { "unpublishes" }
}
