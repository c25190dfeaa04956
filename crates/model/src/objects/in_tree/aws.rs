//! `awsElasticBlockStore` to `ebs.csi.aws.com`.

use serde::Deserialize;
use std::collections::BTreeMap;

use super::plugin::{InTreePlugin, TranslationError, source_of};
use crate::objects::csi_source::CsiSource;

/// `AWSElasticBlockStoreVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ElasticBlockStoreWire {
    #[serde(rename = "volumeID")]
    volume_id: String,
    fs_type: String,
    partition: i32,
    read_only: bool,
}

impl ElasticBlockStoreWire {
    pub fn translate(self) -> Result<CsiSource, TranslationError> {
        let handle = ebs_volume_id(&self.volume_id)?;
        let partition = self.partition.to_string();
        Ok(CsiSource {
            read_only: self.read_only,
            fs_type: self.fs_type.into(),
            attributes: BTreeMap::from([("partition".to_owned(), partition)]).into(),
            ..source_of(InTreePlugin::AwsElasticBlockStore, handle)
        })
    }
}

/// The volume's ID in EC2: in-tree it may be wrapped as `aws://<zone>/<id>` or `aws:///<id>`. A bare ID is not looked
/// at.
fn ebs_volume_id(id: &str) -> Result<&str, TranslationError> {
    let Some(rest) = id.strip_prefix("aws://") else {
        return Ok(id);
    };
    // No volume ID needs escaping; one that does is no volume ID, and is not to be guessed at.
    if rest.contains(|letter: char| letter.is_ascii_control() || letter == '%') {
        return Err(TranslationError::EbsUrl(id.into()));
    }
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let path = rest[..end].split_once('/').map_or("", |(_zone, path)| path);
    let volume = path.trim_matches('/');
    if volume.starts_with("vol-") && !volume.contains('/') {
        return Ok(volume);
    }
    Err(TranslationError::EbsVolume(id.into()))
}
