//! Names of volumes. They are derived from the claim's UID as external-provisioner does, so that each finds the volumes of the other.

use super::policy::ProvisionPolicy;
use super::refusal::ProvisionRefusal;
use crate::api::is_volume_name_prefix;

/// Longest name of a volume in bytes (CSI spec, "Size Limits").
const MAX_VOLUME_NAME: usize = 128;
/// Longest prefix that a marker may name.
const MAX_PREFIX: usize = 63;
/// How long a shortened UID may be: what `volumeNameUUIDLength` accepts.
const UUID_LENGTHS: std::ops::RangeInclusive<usize> = 16..=32;

/// Whether a prefix that an annotation names may be one: as `spec.provisioning.volumeNamePrefix`.
pub fn is_prefix(prefix: &str) -> bool {
    prefix.len() <= MAX_PREFIX && is_volume_name_prefix(prefix)
}

/// How the names of volumes are made: one rule for the prefix and for how much of the UID follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeNaming<'a> {
    /// What they begin with.
    pub prefix: &'a str,
    /// So many characters of the UID without its dashes; none is the whole UID.
    pub uuid_length: Option<usize>,
}

impl<'a> VolumeNaming<'a> {
    /// How the name of the volume of the claim with this UID was made; none where it is not made of that.
    pub fn of_name(name: &'a str, uid: &str) -> Option<Self> {
        let whole = name.strip_suffix(uid).and_then(|start| start.strip_suffix('-'));
        if let Some(prefix) = whole {
            return Some(Self {
                prefix,
                uuid_length: None,
            });
        }
        let (prefix, part) = name.rsplit_once('-')?;
        let naming = Self {
            prefix,
            uuid_length: Some(part.len()),
        };
        let made = naming.volume_name(uid).ok();
        made.is_some_and(|made| *made == *name).then_some(naming)
    }

    /// Whether a marker may name it, which users of a namespace can write.
    ///
    /// The name is made from the claim's own UID. After its last dash it has 12 characters of a whole UID, or 16 to 32 of a shortened one:
    /// whatever the prefix is, it is the name of another claim's volume only where the UIDs begin alike, as by the settings.
    pub fn is_trusted(&self) -> bool {
        is_prefix(self.prefix) && self.uuid_length.is_none_or(|length| UUID_LENGTHS.contains(&length))
    }

    /// The name of the volume of the claim with this UID, which is that of its PersistentVolume as well: prefix, dash and UID; with
    /// `uuid_length`, the first so many characters of the UID without its dashes.
    pub fn volume_name(&self, uid: &str) -> Result<Box<str>, ProvisionRefusal> {
        let short = || ProvisionRefusal::ShortUid(uid.into());
        let suffix = match self.uuid_length {
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
        let name = format!("{}-{suffix}", self.prefix);
        if name.len() > MAX_VOLUME_NAME {
            return Err(ProvisionRefusal::VolumeNameTooLong(name.len()));
        }
        Ok(name.into())
    }
}

impl ProvisionPolicy {
    /// How names are made by the settings.
    pub fn naming(&self) -> VolumeNaming<'_> {
        VolumeNaming {
            prefix: &self.volume_name_prefix,
            uuid_length: self.volume_name_uuid_length,
        }
    }
}
