//! The parameters of a StorageClass: which are read here, and which go to the driver.
//!
//! Keys with the prefix `csi.storage.k8s.io/` are not sent to the driver, and one that is not known is an error. Deprecated keys mean the
//! same as those that took their place, and are sent on, as external-provisioner does.

use std::collections::BTreeMap;

use super::refusal::ProvisionRefusal;
use super::secrets::{SecretFamily, SecretTemplates};
use crate::api::names::RESERVED_PARAMETER_PREFIX;
use crate::objects::{StorageClass, StringMap};

/// The deprecated key of the file system type, and the one that took its place.
const FS_TYPE: &str = "fstype";
const FS_TYPE_KEY: &str = "csi.storage.k8s.io/fstype";

/// What the parameters of a class say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassParameters<'a> {
    /// File system type, if the class names one; may be empty.
    pub fs_type: Option<&'a str>,
    /// The templates of the Secrets, by family.
    pub secrets: SecretTemplates<'a>,
    /// What is sent to the driver.
    pub sent: BTreeMap<&'a str, &'a str>,
}

impl<'a> ClassParameters<'a> {
    /// Reads the parameters of a class.
    pub fn of(class: &'a StorageClass) -> Result<Self, ProvisionRefusal> {
        check_size(class)?;
        let sent = sent(class)?;
        Ok(Self {
            fs_type: fs_type(class)?,
            secrets: SecretTemplates::of(class)?,
            sent,
        })
    }

    /// The templates of the Secret of DeleteVolume: nothing else of the class matters to it.
    pub fn deletion_secrets(class: &'a StorageClass) -> Result<SecretTemplates<'a>, ProvisionRefusal> {
        check_size(class)?;
        SecretTemplates::of_deletion(class)
    }

    /// What is sent to the driver, with these entries more.
    pub fn sent_with(&self, more: &[(&str, &str)]) -> StringMap {
        let all = self
            .sent
            .iter()
            .map(|(key, value)| (*key, *value))
            .chain(more.iter().copied());
        let all: BTreeMap<String, String> = all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        all.into()
    }
}

fn check_size(class: &StorageClass) -> Result<(), ProvisionRefusal> {
    let Some(too_large) = &class.too_large else {
        return Ok(());
    };
    Err(ProvisionRefusal::ClassTooLarge {
        class: class.name.clone(),
        field: too_large.field,
        bytes: too_large.bytes,
    })
}

fn sent(class: &StorageClass) -> Result<BTreeMap<&str, &str>, ProvisionRefusal> {
    let mut sent = BTreeMap::new();
    for (key, value) in class.parameters.iter() {
        match key.strip_prefix(RESERVED_PARAMETER_PREFIX) {
            None => {
                sent.insert(key, value);
            }
            Some(_) if key == FS_TYPE_KEY || SecretFamily::is_key(key) => {}
            Some(_) => {
                return Err(ProvisionRefusal::UnknownReservedKey {
                    class: class.name.clone(),
                    key: key.into(),
                });
            }
        }
    }
    Ok(sent)
}

/// The deprecated key counts whatever its case is.
fn fs_type(class: &StorageClass) -> Result<Option<&str>, ProvisionRefusal> {
    let is_fs_type = |key: &str| key.eq_ignore_ascii_case(FS_TYPE) || key == FS_TYPE_KEY;
    let mut named = class.parameters.iter().filter(|(key, _)| is_fs_type(key));
    let first = named.next();
    if named.next().is_some() {
        return Err(ProvisionRefusal::FsTypeTwice {
            class: class.name.clone(),
        });
    }
    Ok(first.map(|(_, value)| value))
}

/// The deprecated keys of a class, each with the key that took its place.
pub(super) fn deprecated_keys(class: &StorageClass) -> impl Iterator<Item = (&str, &'static str)> {
    class.parameters.iter().filter_map(|(key, _)| {
        let of_secret = SecretFamily::key_in_place_of(key);
        let of_fs_type = key.eq_ignore_ascii_case(FS_TYPE).then_some(FS_TYPE_KEY);
        Some((key, of_secret.or(of_fs_type)?))
    })
}
