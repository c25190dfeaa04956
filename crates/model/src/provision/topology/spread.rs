//! How the volumes of a StatefulSet are spread over the topology.

/// Where a claim begins in a list of terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadPosition {
    /// Hash of the name of the set.
    pub hash: u32,
    /// Number of the pod in the set.
    pub index: u32,
}

impl SpreadPosition {
    /// The position in a list of this many terms; 0 in an empty one.
    pub fn of(self, terms: usize) -> usize {
        let Some(terms) = u32::try_from(terms).ok().filter(|terms| *terms > 0) else {
            return 0;
        };
        usize::try_from(self.hash.wrapping_add(self.index) % terms).unwrap_or(0)
    }
}

/// Where the claim of this name begins, as external-provisioner computes it.
///
/// The claims of a StatefulSet are named `<template>-<set>-<number>`. The number is added to the hash of the set, so that the pods go
/// through the terms one after the other, and the claims of one pod begin at the same term. `<name>-<number>` hashes the name; any other
/// name is hashed as a whole.
pub fn spread_position(claim: &str) -> SpreadPosition {
    let numbered = claim.rsplit_once('-').and_then(|(name, number)| {
        // `+1` is no number of a pod.
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse::<u32>().ok().filter(|_| is_number)?;
        Some((name, number))
    });
    match numbered {
        Some((name, index)) => SpreadPosition {
            hash: fnv1(name.rsplit_once('-').map_or(name, |(_, set)| set)),
            index,
        },
        None => SpreadPosition {
            hash: fnv1(claim),
            index: 0,
        },
    }
}

/// FNV-1 of 32 bits.
fn fnv1(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    })
}
