//! Takes the secrets of a call out of a text of the driver, however the driver printed them.
//!
//! The text is read nine ways from each of its positions: as it stands, and as each [`Encoding`] would be decoded. Each
//! way is deterministic, so that a secret is looked for without a list of all its forms; and all secrets are looked for
//! at the same time, in one sorted list, so that their number hardly matters.

use std::fmt;
use std::ops::Range;

/// Values shorter than this are left alone: scrubbing "1" from a message would destroy it and hide nothing.
const MIN_SECRET_BYTES: usize = 4;
/// Of a longer text only the beginning is searched and kept: four times what is kept of it in the end.
const MAX_TEXT_BYTES: usize = 16 << 10;
/// The longest search, in bytes that are read: about 100 ms. Only a text that nearly repeats a long and repetitive secret
/// all along gets there.
const MAX_STEPS: usize = 2_000_000;

const STRIPPED: &str = "***stripped***";

/// What base64 and hex are broken by: `base64` does it after 76 characters, PEM after 64, hex dumps after each byte or two.
const BREAKS: &[u8] = b" \t\r\n";

/// Replaces each of the secret values of a call in a text of the driver.
///
/// A value is recognised as it stands, without the blanks and line ends around it; in the escapes of JSON, of Go's `%q`
/// and of C; in the percent-encoding of paths and queries; in the entities of XML and HTML; in base64 of both alphabets, padded or not, also in the middle
/// of other base64; and in hex. Base64 and hex may be broken by blanks and line ends. Of a value of several lines, such
/// as a key in PEM form, each line is looked for as well.
/// What is printed in two of these ways at a time, or in another way, is not recognised.
///
/// Of a text longer than 16 KiB only the beginning is kept; what may be the beginning of a value at its end goes as
/// well. Should the search take too long, nothing of the text is kept.
pub fn scrub(text: &str, values: &SecretValues) -> String {
    let kept = super::cut(text, MAX_TEXT_BYTES);
    let is_cut = kept.len() < text.len();
    if values.places.is_empty() {
        return kept.to_owned();
    }
    let Some(found) = search(kept.as_bytes(), values, is_cut) else {
        return format!("{STRIPPED} (the text took too long to be searched for secrets)");
    };
    let mut scrubbed = String::with_capacity(kept.len());
    let mut from = 0;
    for range in found {
        scrubbed.push_str(kept.get(from..range.start).unwrap_or_default());
        scrubbed.push_str(STRIPPED);
        from = range.end;
    }
    scrubbed.push_str(kept.get(from..).unwrap_or_default());
    scrubbed
}

/// What is looked for in texts: the values of secrets and their lines. It prints as a count.
#[derive(Default)]
pub struct SecretValues {
    /// All values, one after the other.
    text: Box<[u8]>,
    /// Where in it what is looked for stands, sorted by what it is, so that those with one beginning stand together.
    places: Box<[Range<usize>]>,
}

impl SecretValues {
    /// Sorts what is looked for. That takes longer than to search a text, so who searches several keeps it.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let (mut text, mut places) = (String::new(), Vec::new());
        for secret in secrets {
            let mut at = text.len();
            text.push_str(secret);
            places.push(trimmed(secret, at));
            for line in secret.split_inclusive('\n') {
                places.push(trimmed(line, at));
                at += line.len();
            }
        }
        let text = text.into_bytes().into_boxed_slice();
        let value = |place: &Range<usize>| text.get(place.clone()).unwrap_or_default();
        places.retain(|place| place.len() >= MIN_SECRET_BYTES);
        places.sort_unstable_by(|one, other| value(one).cmp(value(other)));
        places.dedup_by(|one, other| value(one) == value(other));
        let places = places.into_boxed_slice();
        Self { text, places }
    }

    /// The byte after the first `depth` ones of a value.
    fn byte(&self, place: &Range<usize>, depth: usize) -> Option<&u8> {
        self.text.get(place.clone())?.get(depth)
    }

    /// Those of `range`, which have `depth` bytes in common, that go on with this byte.
    fn narrow(&self, range: Range<usize>, depth: usize, byte: u8) -> Range<usize> {
        let Some(places) = self.places.get(range.clone()) else {
            return 0..0;
        };
        let start = places.partition_point(|place| self.byte(place, depth) < Some(&byte));
        let end = places.partition_point(|place| self.byte(place, depth) <= Some(&byte));
        range.start + start..range.start + end
    }

    /// Whether there is a value in `range`, which have `depth` bytes in common, that is no longer than that.
    fn ends(&self, range: &Range<usize>, depth: usize) -> bool {
        self.places.get(range.start).is_some_and(|place| place.len() == depth)
    }
}

impl fmt::Debug for SecretValues {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "<{} redacted>", self.places.len())
    }
}

/// Where a part that begins at `at` is without the blanks around it.
fn trimmed(part: &str, at: usize) -> Range<usize> {
    let start = at + part.len() - part.trim_start().len();
    start..start + part.trim().len()
}

/// A way to print bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Plain,
    /// With a backslash: JSON, `%q` of Go, strings of C.
    Backslash,
    /// `%XX`, as in a path.
    Percent,
    /// The same with `+` for a blank, as in a query.
    Form,
    /// With `&amp;`, `&#38;` or `&#x26;`: XML, and the same characters in HTML.
    Entity,
    /// Two digits for a byte.
    Hex,
    /// Base64, of which the first character has so many bits (0, 2 or 4) of what stands before.
    Base64(u32),
}

/// The longest entity, after its `&`: `#x10FFFF;`, with one zero before it.
const MAX_ENTITY: usize = 10;

const ENCODINGS: [Encoding; 9] = [
    Encoding::Plain,
    Encoding::Backslash,
    Encoding::Percent,
    Encoding::Form,
    Encoding::Entity,
    Encoding::Hex,
    Encoding::Base64(0),
    Encoding::Base64(2),
    Encoding::Base64(4),
];

/// The parts of a text that are secret, in their order and apart from each other; none when that takes too long.
fn search(text: &[u8], values: &SecretValues, is_cut: bool) -> Option<Vec<Range<usize>>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut steps = 0;
    for start in 0..text.len() {
        let ends = ENCODINGS
            .iter()
            .filter_map(|encoding| longest(text, start, *encoding, values, is_cut, &mut steps));
        let end = ends.max();
        if steps > MAX_STEPS {
            return None;
        }
        let Some(end) = end else { continue };
        match found.last_mut() {
            // Two that overlap leave no rest of the second.
            Some(last) if start < last.end => last.end = last.end.max(end),
            _ => found.push(start..end),
        }
    }
    Some(found)
}

/// Where the longest value ends that stands at `start` in this encoding.
fn longest(
    text: &[u8],
    start: usize,
    encoding: Encoding,
    values: &SecretValues,
    is_cut: bool,
    steps: &mut usize,
) -> Option<usize> {
    let mut reader = Reader::new(text, start, encoding);
    let mut range = 0..values.places.len();
    let (mut depth, mut end) = (0, None);
    while *steps <= MAX_STEPS {
        let from = reader.at;
        let next = reader.next();
        *steps += reader.at - from;
        let Some(byte) = next else {
            let is_part = is_cut && reader.hit_end && depth >= MIN_SECRET_BYTES;
            return if is_part { Some(text.len()) } else { end };
        };
        range = values.narrow(range, depth, byte);
        if range.is_empty() {
            break;
        }
        depth += 1;
        if values.ends(&range, depth) {
            end = Some(reader.end());
        }
    }
    end
}

/// Decodes a text from a position on. It ends at the end of the text, and where the text is not of the encoding.
struct Reader<'t> {
    text: &'t [u8],
    at: usize,
    encoding: Encoding,
    /// Bytes of a character of which the first was read; from the second on, in their order.
    rest: [u8; 3],
    rest_length: usize,
    /// Bits that were read and not given out, and how many.
    bits: u32,
    bit_count: u32,
    /// Whether nothing more comes because the text is over, perhaps in the middle of an escape.
    hit_end: bool,
}

impl<'t> Reader<'t> {
    fn new(text: &'t [u8], at: usize, encoding: Encoding) -> Self {
        let mut reader = Self {
            text,
            at,
            encoding,
            rest: [0; 3],
            rest_length: 0,
            bits: 0,
            bit_count: 0,
            hit_end: false,
        };
        // What begins after another character is read from there on, not from here.
        match encoding {
            Encoding::Hex | Encoding::Base64(_) if text.get(at).is_some_and(|byte| BREAKS.contains(byte)) => {
                reader.at = text.len();
            }
            Encoding::Base64(others) => match reader.base64_digit() {
                Some(digit) => {
                    reader.bits = digit & (0x3f >> others);
                    reader.bit_count = 6 - others;
                }
                None => reader.at = text.len(),
            },
            _ => {}
        }
        reader
    }

    /// Where what was read so far ends: with base64 after the padding.
    fn end(&self) -> usize {
        let mut end = self.at;
        if matches!(self.encoding, Encoding::Base64(_)) {
            for _ in 0..2 {
                let next = self.after_breaks(end);
                if self.text.get(next) == Some(&b'=') {
                    end = next + 1;
                }
            }
        }
        end
    }

    /// Where the blanks and line ends from a place on are over.
    fn after_breaks(&self, at: usize) -> usize {
        let rest = self.text.get(at..).unwrap_or_default();
        at + rest.iter().take_while(|byte| BREAKS.contains(byte)).count()
    }

    fn take(&mut self) -> Option<u8> {
        if matches!(self.encoding, Encoding::Hex | Encoding::Base64(_)) {
            self.at = self.after_breaks(self.at);
        }
        let byte = self.text.get(self.at).copied();
        self.hit_end |= byte.is_none();
        self.at += usize::from(byte.is_some());
        byte
    }

    fn next(&mut self) -> Option<u8> {
        if self.rest_length > 0 {
            let [first, second, third] = self.rest;
            self.rest = [second, third, 0];
            self.rest_length -= 1;
            return Some(first);
        }
        match self.encoding {
            Encoding::Plain => self.take(),
            Encoding::Backslash => match self.take()? {
                b'\\' => self.escape(),
                byte => Some(byte),
            },
            Encoding::Percent | Encoding::Form => match self.take()? {
                b'%' => self.byte_of_hex(),
                b'+' if self.encoding == Encoding::Form => Some(b' '),
                byte => Some(byte),
            },
            Encoding::Entity => match self.take()? {
                b'&' => self.entity(),
                byte => Some(byte),
            },
            Encoding::Hex => self.byte_of_hex(),
            Encoding::Base64(_) => self.byte_of_base64(),
        }
    }

    fn escape(&mut self) -> Option<u8> {
        let byte = match self.take()? {
            b'a' => 7,
            b'b' => 8,
            b't' => b'\t',
            b'n' => b'\n',
            b'v' => 11,
            b'f' => 12,
            b'r' => b'\r',
            b'x' => return self.byte_of_hex(),
            b'u' => return self.unicode(4),
            b'U' => return self.unicode(8),
            digit @ b'0'..=b'7' => return self.octal(digit),
            byte @ (b'"' | b'\'' | b'\\' | b'/' | b'`') => byte,
            _ => return None,
        };
        Some(byte)
    }

    /// Three digits, or a zero alone.
    fn octal(&mut self, first: u8) -> Option<u8> {
        let digit = |byte: &u8| matches!(byte, b'0'..=b'7').then(|| u32::from(byte - b'0'));
        let next = self.text.get(self.at..self.at + 2).unwrap_or_default();
        match next.iter().map(digit).collect::<Option<Vec<u32>>>().as_deref() {
            Some([second, third]) => {
                self.at += 2;
                u8::try_from(u32::from(first - b'0') * 64 + second * 8 + third).ok()
            }
            _ => (first == b'0').then_some(0),
        }
    }

    /// A character by its number in so many digits of hex. The second half of a pair of surrogates follows as an escape.
    fn unicode(&mut self, digits: usize) -> Option<u8> {
        let number = self.number(digits)?;
        let number = if (0xd800..0xdc00).contains(&number) {
            let is_escape = self.take()? == b'\\' && self.take()? == b'u';
            let low = self.number(4)?;
            if !is_escape || !(0xdc00..0xe000).contains(&low) {
                return None;
            }
            0x10000 + ((number - 0xd800) << 10) + (low - 0xdc00)
        } else {
            number
        };
        self.character(number)
    }

    /// A character by what stands between `&` and `;`: its name in XML, or its number.
    fn entity(&mut self) -> Option<u8> {
        let text = self.text;
        let rest = text.get(self.at..).unwrap_or_default();
        let Some(length) = rest.iter().take(MAX_ENTITY).position(|byte| *byte == b';') else {
            self.hit_end |= rest.len() < MAX_ENTITY;
            return None;
        };
        let number = match rest.get(..length)? {
            b"amp" => u32::from(b'&'),
            b"lt" => u32::from(b'<'),
            b"gt" => u32::from(b'>'),
            b"quot" => u32::from(b'"'),
            b"apos" => u32::from(b'\''),
            [b'#', b'x' | b'X', digits @ ..] => number_of(digits, 16)?,
            [b'#', digits @ ..] => number_of(digits, 10)?,
            _ => return None,
        };
        self.at += length + 1;
        self.character(number)
    }

    /// The first byte of the character with this number; those after it are kept.
    fn character(&mut self, number: u32) -> Option<u8> {
        let mut buffer = [0; 4];
        let encoded = char::from_u32(number)?.encode_utf8(&mut buffer).as_bytes();
        let (first, rest) = encoded.split_first()?;
        for (place, byte) in self.rest.iter_mut().zip(rest) {
            *place = *byte;
        }
        self.rest_length = rest.len();
        Some(*first)
    }

    fn number(&mut self, digits: usize) -> Option<u32> {
        let mut number: u32 = 0;
        for _ in 0..digits {
            number = number.checked_mul(16)? + char::from(self.take()?).to_digit(16)?;
        }
        Some(number)
    }

    fn byte_of_hex(&mut self) -> Option<u8> {
        u8::try_from(self.number(2)?).ok()
    }

    fn byte_of_base64(&mut self) -> Option<u8> {
        while self.bit_count < 8 {
            self.bits = (self.bits << 6) | self.base64_digit()?;
            self.bit_count += 6;
        }
        self.bit_count -= 8;
        let byte = u8::try_from(self.bits >> self.bit_count).ok();
        self.bits &= (1 << self.bit_count) - 1;
        byte
    }

    fn base64_digit(&mut self) -> Option<u32> {
        let byte = self.take()?;
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        Some(u32::from(digit))
    }
}

/// A number of at least one digit, without a sign.
fn number_of(digits: &[u8], radix: u32) -> Option<u32> {
    let digits = std::str::from_utf8(digits)
        .ok()
        .filter(|digits| !digits.starts_with('+'))?;
    u32::from_str_radix(digits, radix).ok()
}
