//! Scripted behaviour: which calls fail, hang, come late or lose their connection.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tonic::{Code, Status};

use csi_attacher_proto::v1;

use super::facts::{Method, MockFacts, code_from_name, code_name};

/// Which calls a rule is for, how often, and what they shall meet.
///
/// Rules are tried in the order they were added; the first that fits and is not used up decides about a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// Only calls of this method; absent means all methods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Only calls for this volume id (for CreateVolume: name); absent means all volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Only CreateVolume for the PersistentVolumeClaim of this name, which the caller tells in the parameters; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Only calls for this node id; absent means all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only calls for the page with this token, empty for the first; absent means all pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting_token: Option<String>,
    /// How many calls the rule is for; absent means until the rules are cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// How many fitting calls go by before the rule starts.
    #[serde(default)]
    pub skip: u32,
    /// Wait before anything else happens, in milliseconds; replaces the delay set for the method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// What happens to the call.
    #[serde(default)]
    pub action: ScriptAction,
}

/// What happens to a call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ScriptAction {
    /// It is answered as usual.
    #[default]
    Pass,
    /// It gets an error and nothing is done.
    Fail(ScriptedFailure),
    /// The work is done, and it gets an error all the same.
    FailAfterWork(ScriptedFailure),
    /// It gets no answer; nothing is done.
    Hang,
    /// It is answered as usual once somebody releases it; after ten minutes it is answered all the same.
    UntilReleased,
    /// It gets no answer until the caller has given up; then the work is done.
    LateSuccess,
    /// Its connection is closed; nothing is done.
    DropConnection,
    /// The work is done, then its connection is closed instead of an answer.
    DropConnectionAfterWork,
    /// The work is done, and the answer of CreateVolume is not what it should be. Other calls are answered as usual.
    Answer(ScriptedAnswer),
}

/// What a careless driver answers to CreateVolume instead of what it made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScriptedAnswer {
    /// Another volume ID; absent means that of the volume.
    #[serde(default)]
    pub volume_id: Option<String>,
    /// Another size in bytes; absent means that of the volume.
    #[serde(default)]
    pub capacity_bytes: Option<i64>,
}

impl ScriptedAnswer {
    /// Changes an answer.
    pub(super) fn change(self, volume: &mut v1::Volume) {
        if let Some(id) = self.volume_id {
            volume.volume_id = id;
        }
        if let Some(bytes) = self.capacity_bytes {
            volume.capacity_bytes = bytes;
        }
    }
}

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScriptedFailure {
    /// Status code, written by its gRPC name such as `RESOURCE_EXHAUSTED`.
    #[serde(serialize_with = "write_code", deserialize_with = "read_code")]
    pub code: Code,
    /// Text of the status. `{call}` stands for the number of the call: many drivers quote a number that is never the same.
    #[serde(default)]
    pub message: String,
    /// Adds the values of the request's secrets to the text, as careless drivers do: shows whether the caller prints them.
    #[serde(default)]
    pub echo_secrets: bool,
    /// Adds so many bytes to the text.
    #[serde(default)]
    pub pad_bytes: usize,
}

impl ScriptedFailure {
    /// The status the caller gets.
    pub(super) fn status(&self, call: u64, secrets: &BTreeMap<String, String>) -> Status {
        let mut message = self.message.replace("{call}", &call.to_string());
        if self.echo_secrets {
            for value in secrets.values() {
                message.push(' ');
                message.push_str(value);
            }
        }
        message.extend(std::iter::repeat_n('x', self.pad_bytes));
        Status::new(self.code, message)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks for this shape.
fn write_code<S: Serializer>(code: &Code, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(code_name(*code))
}

fn read_code<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Code, D::Error> {
    let name = String::deserialize(deserializer)?;
    match code_from_name(&name) {
        Some(Code::Ok) => Err(serde::de::Error::custom("OK is no failure")),
        Some(code) => Ok(code),
        None => Err(serde::de::Error::custom(format!(
            "unknown status code {name:?}, want a name such as NOT_FOUND"
        ))),
    }
}

impl Rule {
    /// A rule for all calls of one method that changes nothing yet.
    pub fn on(method: Method) -> Self {
        Self {
            method: Some(method),
            ..Self::any()
        }
    }

    /// A rule for all calls that changes nothing yet.
    pub fn any() -> Self {
        Self {
            method: None,
            volume: None,
            claim: None,
            node: None,
            starting_token: None,
            times: None,
            skip: 0,
            delay_ms: None,
            action: ScriptAction::Pass,
        }
    }

    /// Only for this volume.
    #[must_use]
    pub fn volume(self, volume: impl Into<String>) -> Self {
        Self {
            volume: Some(volume.into()),
            ..self
        }
    }

    /// Only for the PersistentVolumeClaim of this name.
    #[must_use]
    pub fn claim(self, claim: impl Into<String>) -> Self {
        Self {
            claim: Some(claim.into()),
            ..self
        }
    }

    /// Only for this node.
    #[must_use]
    pub fn node(self, node: impl Into<String>) -> Self {
        Self {
            node: Some(node.into()),
            ..self
        }
    }

    /// Only for the page with this token.
    #[must_use]
    pub fn starting_token(self, token: impl Into<String>) -> Self {
        Self {
            starting_token: Some(token.into()),
            ..self
        }
    }

    /// Only so many times.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self {
            times: Some(times),
            ..self
        }
    }

    /// Only after so many fitting calls went by.
    #[must_use]
    pub fn skip(self, skip: u32) -> Self {
        Self { skip, ..self }
    }

    /// Wait so long first (whole milliseconds).
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self {
            delay_ms: Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
            ..self
        }
    }

    /// Does this to the call.
    #[must_use]
    pub fn action(self, action: ScriptAction) -> Self {
        Self { action, ..self }
    }

    /// Answers with an error.
    #[must_use]
    pub fn fail(self, code: Code, message: impl Into<String>) -> Self {
        self.action(ScriptAction::Fail(ScriptedFailure {
            code,
            message: message.into(),
            echo_secrets: false,
            pad_bytes: 0,
        }))
    }

    /// Never answers.
    #[must_use]
    pub fn hang(self) -> Self {
        self.action(ScriptAction::Hang)
    }

    /// Waits until it is released, see [`MockHandle::release`](super::MockHandle::release).
    #[must_use]
    pub fn until_released(self) -> Self {
        self.action(ScriptAction::UntilReleased)
    }

    /// Does the work once the caller has given up.
    #[must_use]
    pub fn late_success(self) -> Self {
        self.action(ScriptAction::LateSuccess)
    }

    /// Closes the connection.
    #[must_use]
    pub fn drop_connection(self) -> Self {
        self.action(ScriptAction::DropConnection)
    }

    fn fits(&self, method: Method, facts: &MockFacts) -> bool {
        fn same<T: PartialEq>(wanted: Option<&T>, is: Option<&T>) -> bool {
            wanted.is_none_or(|wanted| is == Some(wanted))
        }
        same(self.method.as_ref(), Some(&method))
            && same(self.volume.as_ref(), facts.volume.as_ref())
            && same(self.claim.as_ref(), facts.claim())
            && same(self.node.as_ref(), facts.node.as_ref())
            && same(self.starting_token.as_ref(), facts.starting_token.as_ref())
    }
}

/// The rules in force; each knows what is left of it.
#[derive(Default)]
pub(super) struct Script {
    rules: Vec<Rule>,
}

impl Script {
    /// Adds a rule; one that is for no call at all is used up already.
    pub fn add(&mut self, rule: Rule) {
        if rule.times != Some(0) {
            self.rules.push(rule);
        }
    }

    pub fn clear(&mut self) {
        self.rules.clear();
    }

    /// Removes the rules that are for this volume only.
    pub fn clear_of(&mut self, volume: &str) {
        self.rules.retain(|rule| rule.volume.as_deref() != Some(volume));
    }

    /// Removes the rules that are for this PersistentVolumeClaim only.
    pub fn clear_of_claim(&mut self, claim: &str) {
        self.rules.retain(|rule| rule.claim.as_deref() != Some(claim));
    }

    /// The rules that are not used up, with what is left of them.
    pub fn remaining(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule for this call, if one fits; counts it as used.
    pub fn take(&mut self, method: Method, facts: &MockFacts) -> Option<Rule> {
        let mut found = None;
        for (index, rule) in self
            .rules
            .iter_mut()
            .enumerate()
            .filter(|(_, rule)| rule.fits(method, facts))
        {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else {
                found = Some(index);
                break;
            }
        }
        let index = found?;
        let rule = self.rules[index].clone();
        if let Some(times) = &mut self.rules[index].times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                self.rules.remove(index);
            }
        }
        Some(rule)
    }
}
