//! The volume capability that a PersistentVolume asks for (CSI spec, "VolumeCapability").

use super::calls::{AccessMode, Capability, VolumeAccessType};
use super::observed::Observed;
use super::refusal::Refusal;
use crate::objects::{AccessModes, CsiSource, VolumeSpec};

pub(super) fn capability<'a>(
    spec: &'a VolumeSpec,
    source: &'a CsiSource,
    observed: &Observed<'a>,
) -> Result<Capability<'a>, Refusal> {
    let mode = access_mode(spec.access_modes, observed.driver.capabilities.single_node_multi_writer)?;
    let access = if spec.block {
        VolumeAccessType::Block
    } else {
        let fs_type = if source.fs_type.is_empty() {
            &observed.policy.default_fs_type
        } else {
            &*source.fs_type
        };
        VolumeAccessType::Mount {
            fs_type,
            flags: &spec.mount_options,
        }
    };
    Ok(Capability { access, mode })
}

/// Whether a volume with these access modes can be on one node at a time only, whatever the driver can do.
pub fn is_for_one_node(modes: AccessModes) -> bool {
    access_mode(modes, false).is_ok_and(AccessMode::is_for_one_node)
}

/// Why a volume with these access modes cannot be attached, whatever the driver can do.
pub fn check_access_modes(modes: AccessModes) -> Result<(), Refusal> {
    access_mode(modes, false).map(drop)
}

/// Maps a set of access modes to the one that CSI can express. `finer` is the capability SINGLE_NODE_MULTI_WRITER.
pub(super) fn access_mode(modes: AccessModes, finer: bool) -> Result<AccessMode, Refusal> {
    let others = modes.read_write_once || modes.read_only_many || modes.read_write_many || modes.unknown;
    if modes.read_write_once_pod {
        return match (others, finer) {
            (true, _) => Err(Refusal::AccessModes("ReadWriteOncePod must be the only one")),
            (false, true) => Ok(AccessMode::SingleNodeSingleWriter),
            (false, false) => Ok(AccessMode::SingleNodeWriter),
        };
    }
    match (modes.read_write_many, modes.read_only_many, modes.read_write_once) {
        (true, _, _) => Ok(AccessMode::MultiNodeMultiWriter),
        (false, true, true) => Err(Refusal::AccessModes("ReadOnlyMany together with ReadWriteOnce")),
        (false, true, false) => Ok(AccessMode::MultiNodeReaderOnly),
        (false, false, true) if finer => Ok(AccessMode::SingleNodeMultiWriter),
        (false, false, true) => Ok(AccessMode::SingleNodeWriter),
        (false, false, false) => Err(Refusal::AccessModes("none that is known")),
    }
}
