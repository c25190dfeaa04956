//! Fingerprints of states: 128 bits, so that two of a hundred million states are taken for one with a chance of less than one in 10^22.

use std::fmt::Write as _;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Two lanes of folded multiplications with different constants.
#[derive(Clone, Copy)]
pub struct Fingerprints(u64, u64);

impl Default for Fingerprints {
    fn default() -> Self {
        Self(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344)
    }
}

fn folded(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    let bytes = product.to_le_bytes();
    let (mut low, mut high) = ([0; 8], [0; 8]);
    low.copy_from_slice(&bytes[..8]);
    high.copy_from_slice(&bytes[8..]);
    u64::from_le_bytes(low) ^ u64::from_le_bytes(high)
}

impl Fingerprints {
    fn both(&self) -> u128 {
        let second = folded(self.1 ^ 0xe703_7ed1_a0b4_28db, self.0 ^ 0x8ebc_6af0_9c88_c6e3);
        (u128::from(self.finish()) << 64) | u128::from(second)
    }
}

impl Hasher for Fingerprints {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.write_u64(u64::from_le_bytes(word) ^ ((rest.len() as u64) << 56));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = folded(self.0 ^ word, 0x9e37_79b9_7f4a_7c15).rotate_left(23);
        self.1 = folded(self.1.wrapping_add(word), 0xd6e8_feb8_6659_fd93).rotate_left(29) ^ self.0;
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        folded(self.0 ^ self.1, 0xa076_1d64_78bd_642f)
    }
}

/// The fingerprint of a state.
pub fn fingerprint(state: &impl Hash) -> u128 {
    let mut hasher = Fingerprints::default();
    state.hash(&mut hasher);
    hasher.both()
}

/// The fingerprint of what a value shows of itself.
pub fn of_debug(value: &impl std::fmt::Debug) -> u128 {
    let mut written = Written::default();
    // It takes in whatever is written.
    write!(written, "{value:?}").ok();
    written.0.both()
}

/// Takes in text.
#[derive(Default)]
struct Written(Fingerprints);

impl std::fmt::Write for Written {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// For tables whose keys nobody chooses to do harm.
pub type FastMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Fingerprints>>;

/// Values by number, from 1 on. Each is kept once, and told apart from others by a fingerprint.
pub struct Numbered<T> {
    values: Vec<T>,
    numbers: FastMap<u128, u32>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            numbers: FastMap::default(),
        }
    }
}

impl<T> Numbered<T> {
    /// The number of the value with this fingerprint, which is made when there is none yet.
    pub fn number(&mut self, fingerprint: u128, value: impl FnOnce() -> T) -> u32 {
        let values = &mut self.values;
        *self.numbers.entry(fingerprint).or_insert_with(|| {
            values.push(value());
            values.len() as u32
        })
    }

    /// The value of a number.
    pub fn get(&self, number: u32) -> &T {
        &self.values[number as usize - 1]
    }
}

impl<T: Hash> Numbered<T> {
    /// The number of a value.
    pub fn of(&mut self, value: T) -> u32 {
        self.number(fingerprint(&value), || value)
    }
}
