//! `azureDisk` to `disk.csi.azure.com`, `azureFile` to `file.csi.azure.com`.

use serde::Deserialize;
use std::collections::BTreeMap;

use super::keys::RESOURCE_GROUP_ANNOTATION;
use super::plugin::{InTreePlugin, PersistentVolumeContext, TranslationError, source_of};
use crate::objects::csi_source::CsiSource;

/// The only kind of disk that the CSI driver knows.
const MANAGED: &str = "Managed";
/// `AzureDiskVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskWire {
    #[serde(rename = "diskURI")]
    disk_uri: String,
    caching_mode: Option<String>,
    fs_type: Option<String>,
    read_only: Option<bool>,
    kind: Option<String>,
}

impl DiskWire {
    pub fn translate(self) -> Result<CsiSource, TranslationError> {
        if let Some(kind) = self.kind
            && !kind.eq_ignore_ascii_case(MANAGED)
        {
            return Err(TranslationError::DiskKind(kind.into()));
        }
        let mut attributes = BTreeMap::from([("kind".to_owned(), MANAGED.to_owned())]);
        if let Some(mode) = self.caching_mode {
            attributes.insert("cachingmode".to_owned(), mode);
        }
        if let Some(fs_type) = &self.fs_type {
            attributes.insert("fstype".to_owned(), fs_type.clone());
        }
        Ok(CsiSource {
            read_only: self.read_only.unwrap_or(false),
            fs_type: self.fs_type.unwrap_or_default().into(),
            attributes: attributes.into(),
            ..source_of(InTreePlugin::AzureDisk, self.disk_uri)
        })
    }
}

/// `AzureFilePersistentVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FileWire {
    secret_name: String,
    share_name: String,
    read_only: bool,
    secret_namespace: Option<String>,
}

impl FileWire {
    pub fn translate(self, volume: &PersistentVolumeContext<'_>) -> Result<CsiSource, TranslationError> {
        // A namespace in the source counts even when it is empty.
        let namespace = match &self.secret_namespace {
            Some(namespace) => namespace,
            None => volume.claim_namespace,
        };
        if namespace.is_empty() {
            return Err(TranslationError::SecretNamespace);
        }
        let group = volume.annotations.get(RESOURCE_GROUP_ANNOTATION);
        let handle = [
            group.map_or("", String::as_str),
            account(&self.secret_name),
            &self.share_name,
            volume.name,
            namespace,
        ]
        .join("#");
        Ok(CsiSource {
            read_only: self.read_only,
            attributes: BTreeMap::from([("sharename".to_owned(), self.share_name)]).into(),
            ..source_of(InTreePlugin::AzureFile, handle)
        })
    }
}

/// The storage account that a secret is of: what stands between `azure-storage-account-` and the last `-secret`, or the
/// secret's whole name when it is not made that way.
fn account(secret: &str) -> &str {
    let between = || {
        let (_, rest) = secret.split_once("azure-storage-account-")?;
        let (account, _) = rest.rsplit_once("-secret")?;
        (!account.is_empty()).then_some(account)
    };
    between().unwrap_or(secret)
}
