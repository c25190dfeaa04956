//! What a call is: what is sent, what of the answer counts, and what the span shows.

use crate::apiserver::SecretData;
use crate::telemetry::Span;

/// A call with its parameters. [`CsiClient::call`](crate::CsiClient::call) makes it.
pub trait Call: Sync {
    /// Path of the gRPC method, `/csi.v1.SERVICE/METHOD`.
    const PATH: &'static str;
    /// Largest answer that is read: a broken driver must not fill the memory of the operator. By default enough for what a driver says
    /// of itself: a name, a version, some dozens of capabilities and a manifest that is not read.
    const MAX_ANSWER_BYTES: usize = 64 << 10;
    /// Where in the answer elements are, the entries of lists and maps: all of those that [`Self::Response`] has.
    const ELEMENTS: &'static [ElementField];
    /// The most elements with which an answer is decoded: decoded, one takes up to some 300 bytes. By default many times what a driver says
    /// of itself.
    const MAX_ELEMENTS: usize = 4096;
    /// Message that is sent.
    type Request: prost::Message + Default + 'static;
    /// Message that is received. It may have fewer fields than that of the specification.
    type Response: prost::Message + Default + 'static;
    /// What the caller gets.
    type Answer;

    /// The message with the parameters of this call, if it has any.
    fn request(&self) -> Self::Request {
        Self::Request::default()
    }

    /// Secrets in the message. They are removed from every text that the driver answers.
    fn secrets(&self) -> Option<&SecretData> {
        None
    }

    /// Sets attributes of a span that is recorded, before the call is sent.
    fn describe(&self, _span: &mut Span) {}

    /// Reads the response; the span of the call can still be changed.
    fn answer(&self, response: Self::Response, span: &mut Span) -> Self::Answer;
}

/// A field of an answer in which elements are: the entries of its lists and maps.
#[derive(Debug)]
pub struct ElementField {
    pub(super) number: u32,
    /// Whether each occurrence is an element.
    pub(super) repeats: bool,
    /// Those of the message in it.
    pub(super) fields: &'static [ElementField],
}

impl ElementField {
    /// A list, or a map; `fields` are those of the messages in it.
    #[must_use]
    pub const fn repeated(number: u32, fields: &'static [Self]) -> Self {
        Self {
            number,
            repeats: true,
            fields,
        }
    }

    /// A single message with these fields.
    #[must_use]
    pub const fn single(number: u32, fields: &'static [Self]) -> Self {
        Self {
            number,
            repeats: false,
            fields,
        }
    }
}
