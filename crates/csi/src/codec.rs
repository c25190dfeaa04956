//! How the messages of a call are written and read: as prost does, but of an answer the elements are counted before it is decoded.
//!
//! An element of two bytes becomes dozens of bytes of memory, and a map with one entry half a kilobyte. So a limit of the bytes of an
//! answer alone is none of the memory that it takes.

use std::marker::PhantomData;

use prost::bytes::Buf as _;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};
use thiserror::Error;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::call::{Call, ElementField};

#[derive(Debug, Error)]
enum Undecodable {
    #[error(transparent)]
    Garbled(#[from] DecodeError),
    #[error("it has more than {0} elements, the entries of its lists and maps, and is not decoded")]
    TooManyElements(usize),
}

/// Refuses a message with more than `limit` elements.
fn check(message: &[u8], fields: &[ElementField], limit: usize) -> Result<(), Undecodable> {
    let mut left = limit;
    if has_more(message, fields, &mut left)? {
        return Err(Undecodable::TooManyElements(limit));
    }
    Ok(())
}

/// Takes the elements of a message from what is left. It reads as the decoder does, which ends where this ends.
fn has_more(mut message: &[u8], fields: &[ElementField], left: &mut usize) -> Result<bool, DecodeError> {
    while !fields.is_empty() && !message.is_empty() {
        let (number, form) = decode_key(&mut message)?;
        let mut content = message;
        skip_field(form, number, &mut message, DecodeContext::default())?;
        let mut known = fields.iter();
        let Some(field) = known.find(|field| field.number == number && form == WireType::LengthDelimited) else {
            continue;
        };
        if field.repeats {
            let Some(fewer) = left.checked_sub(1) else {
                return Ok(true);
            };
            *left = fewer;
        }
        decode_varint(&mut content)?;
        let length = content.len() - message.len();
        if has_more(content.get(..length).unwrap_or_default(), field.fields, left)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The codec of a call with these messages, which decodes what has no more elements than allowed.
#[derive(Debug)]
pub(super) struct BoundedCodec<T, U> {
    fields: &'static [ElementField],
    limit: usize,
    messages: PhantomData<(T, U)>,
}

impl<T, U> BoundedCodec<T, U> {
    pub fn of<C: Call<Request = T, Response = U>>() -> Self {
        Self {
            fields: C::ELEMENTS,
            limit: C::MAX_ELEMENTS,
            messages: PhantomData,
        }
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + 'static,
    U: Message + Default + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self {
        Self { ..*self }
    }
}

impl<T, U: Message + Default> Decoder for BoundedCodec<T, U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // A message is in one piece.
        check(message.chunk(), self.fields, self.limit).map_err(|error| Status::internal(error.to_string()))?;
        ProstDecoder::<U>::default().decode(message)
    }
}

#[cfg(test)]
mod tests;
