//! A hash for what is recorded on objects.

const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// A hash that is the same in every version of the program: FNV-1a of 128 bits over texts, each with its length before it, in hexadecimal.
///
/// It is no proof against somebody who looks for two inputs with one hash, and none is needed: whoever may write the annotation that it is
/// compared with may write any other hash there.
pub fn stable_hash<'a>(texts: impl IntoIterator<Item = &'a str>) -> Box<str> {
    let hash = texts.into_iter().fold(OFFSET, |hash, text| {
        let length = (text.len() as u64).to_be_bytes();
        let bytes = length.into_iter().chain(text.bytes());
        bytes.fold(hash, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
    });
    format!("{hash:032x}").into()
}
