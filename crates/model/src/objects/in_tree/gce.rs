//! `gcePersistentDisk` to `pd.csi.storage.gke.io`.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

use super::keys::{BETA_ZONE_LABEL, ZONE_LABEL};
use super::plugin::{InTreePlugin, PersistentVolumeContext, TranslationError, source_of};
use crate::objects::access_modes::AccessModes;
use crate::objects::csi_source::CsiSource;

/// Between the zones of a regional disk in one label.
const ZONE_DELIMITER: &str = "__";
/// Stands for what an in-tree volume does not say; the driver finds it out.
pub(super) const UNSPECIFIED: &str = "UNSPECIFIED";

/// `GCEPersistentDiskVolumeSource`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentDiskWire {
    pd_name: String,
    fs_type: String,
    partition: i32,
    read_only: bool,
}

impl PersistentDiskWire {
    pub fn translate(self, volume: &PersistentVolumeContext<'_>) -> Result<CsiSource, TranslationError> {
        let (regionality, place) = place(volume.labels)?;
        // For the driver the empty value is "no partition".
        let partition = match self.partition {
            0 => String::new(),
            number => number.to_string(),
        };
        let handle = handle(UNSPECIFIED, regionality, &place, &self.pd_name);
        Ok(CsiSource {
            read_only: self.read_only,
            fs_type: self.fs_type.into(),
            attributes: BTreeMap::from([("partition".to_owned(), partition)]).into(),
            ..source_of(InTreePlugin::GcePersistentDisk, handle)
        })
    }
}

/// The handle in the driver's form; the place is one of the `zones` or of the `regions`.
pub(super) fn handle(project: &str, regionality: &str, place: &str, disk: &str) -> String {
    format!("projects/{project}/{regionality}/{place}/disks/{disk}")
}

fn place(labels: &BTreeMap<String, String>) -> Result<(&'static str, String), TranslationError> {
    let label = |key: &str| labels.get(key).map(String::as_str).filter(|value| !value.is_empty());
    let Some(zones) = label(BETA_ZONE_LABEL).or_else(|| label(ZONE_LABEL)) else {
        return Ok(("zones", UNSPECIFIED.to_owned()));
    };
    let zones: Vec<&str> = zones.split(ZONE_DELIMITER).collect();
    match zones[..] {
        [zone] => Ok(("zones", zone.to_owned())),
        _ => Ok(("regions", region(&zones)?)),
    }
}

/// The region that all zones are in: what a zone's name begins with.
pub(super) fn region(zones: &[&str]) -> Result<String, TranslationError> {
    let mut regions = BTreeSet::new();
    for zone in zones {
        let parts: Vec<&str> = zone.split('-').collect();
        let [locale, region, _] = parts[..] else {
            return Err(TranslationError::Zone((*zone).into()));
        };
        regions.insert(format!("{locale}-{region}"));
    }
    if regions.len() == 1
        && let Some(region) = regions.pop_first()
    {
        return Ok(region);
    }
    let regions = regions.into_iter().map(String::into_boxed_str).collect();
    Err(TranslationError::Regions(regions))
}

/// The in-tree plug-in attached every disk to one node for writing or to many for reading without further checks; the
/// CSI driver refuses anything else.
///
/// They also say whether the volume may be on two nodes: the attach/detach controller translates a volume before it asks that
/// (`IsMultiAttachAllowed`), so that one of ReadWriteOnce and ReadOnlyMany is on one node at a time for it as well.
pub fn access_modes(modes: AccessModes) -> AccessModes {
    let read_only = modes.read_only_many && !modes.read_write_once && !modes.read_write_many;
    AccessModes {
        read_only_many: read_only,
        read_write_once: !read_only,
        ..AccessModes::default()
    }
}
