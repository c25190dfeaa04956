//! Names of volumes. They are derived from the claim's UID as external-provisioner does, so that each finds the volumes of the other.

use super::policy::ProvisionPolicy;
use super::refusal::ProvisionRefusal;

/// Longest name of a volume in bytes (CSI spec, "Size Limits").
pub const MAX_VOLUME_NAME: usize = 128;
/// Longest prefix that a marker may name.
pub const MAX_PREFIX: usize = 63;

/// The name of the volume of a claim, which is that of its PersistentVolume as well: prefix, dash and UID; with `uuid_length`, the first
/// so many characters of the UID without its dashes.
pub fn volume_name(prefix: &str, uuid_length: Option<usize>, uid: &str) -> Result<Box<str>, ProvisionRefusal> {
    let short = || ProvisionRefusal::ShortUid(uid.into());
    let suffix = match uuid_length {
        None if uid.is_empty() => return Err(short()),
        None => uid.to_owned(),
        Some(length) => {
            let plain: String = uid.chars().filter(|character| *character != '-').take(length).collect();
            if length == 0 || plain.len() < length {
                return Err(short());
            }
            plain
        }
    };
    let name = format!("{prefix}-{suffix}");
    if name.len() > MAX_VOLUME_NAME {
        return Err(ProvisionRefusal::VolumeNameTooLong(name.len()));
    }
    Ok(name.into())
}

/// Whether a prefix that an annotation names may be one: 1 to 63 characters of `[a-z0-9.-]`, beginning and ending with a letter or digit.
pub fn is_prefix(prefix: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = prefix.as_bytes();
    bytes.len() <= MAX_PREFIX
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes
            .iter()
            .all(|byte| is_end(Some(byte)) || matches!(byte, b'.' | b'-'))
}

impl ProvisionPolicy {
    /// The name of the volume of the claim with this UID, with the prefix that was recorded for it, if there is one.
    ///
    /// With a shortened UID the recorded prefix counts only if it is the one of the settings: another one could give the name of the
    /// volume of another claim.
    pub fn volume_name(&self, recorded_prefix: Option<&str>, uid: &str) -> Result<Box<str>, ProvisionRefusal> {
        let recorded = recorded_prefix.filter(|prefix| is_prefix(prefix) && self.volume_name_uuid_length.is_none());
        let prefix = recorded.unwrap_or(&self.volume_name_prefix);
        volume_name(prefix, self.volume_name_uuid_length, uid)
    }
}
