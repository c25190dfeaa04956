//! From a claim and its class to what CreateVolume is called with.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::marker::RecordedArguments;
use super::observed::ObservedClaim;
use super::parameters::ClassParameters;
use super::plan::{ClaimAccessType, CreatePlan, VolumeCapability, VolumeTemplate};
use super::quantity::parse_bytes;
use super::refusal::ProvisionRefusal;
use super::secrets::{SecretFamily, TemplateContext};
use super::topology::{Segment, TopologyQuery, TopologyRequirement, requirement};
use crate::decide::AccessMode;
use crate::objects::{ClaimAccessMode, SecretReference, StorageClass, VolumeMode};
use crate::stable_hash::stable_hash;

/// Hash of what a driver is told of a volume besides its name, its topology and the contents of a Secret.
pub(super) fn arguments_hash(plan: &CreatePlan) -> Box<str> {
    let size = plan.required_bytes.to_string();
    let capabilities = plan.capabilities.iter().flat_map(|capability| {
        let (access, fs_type, flags): (&str, &str, &[Box<str>]) = match &capability.access {
            ClaimAccessType::Block => ("block", "", &[][..]),
            ClaimAccessType::Mount { fs_type, flags } => ("mount", &**fs_type, &**flags),
        };
        let words = [mode_word(capability.mode), access, fs_type];
        words.into_iter().chain(flags.iter().map(|flag| &**flag))
    });
    let parameters = plan.parameters.iter().flat_map(|(key, value)| [key, value]);
    stable_hash(
        std::iter::once(&*size)
            .chain(capabilities)
            .chain(["parameters"])
            .chain(parameters),
    )
}

/// The name of the CSI spec.
const fn mode_word(mode: AccessMode) -> &'static str {
    match mode {
        AccessMode::SingleNodeWriter => "SINGLE_NODE_WRITER",
        AccessMode::SingleNodeSingleWriter => "SINGLE_NODE_SINGLE_WRITER",
        AccessMode::SingleNodeMultiWriter => "SINGLE_NODE_MULTI_WRITER",
        AccessMode::MultiNodeReaderOnly => "MULTI_NODE_READER_ONLY",
        AccessMode::MultiNodeMultiWriter => "MULTI_NODE_MULTI_WRITER",
    }
}

/// What the volume of a claim is created with, by this class; and what its PersistentVolume names, where somebody wants that.
///
/// # Errors
///
/// What the class or the claim says cannot be sent, or the topology is not known.
pub(super) fn plan(
    observed: &ObservedClaim<'_>,
    class: &StorageClass,
    name: &str,
    recorded: RecordedArguments<'_>,
    is_wanted: bool,
) -> Result<CreatePlan, ProvisionRefusal> {
    let (claim, driver, policy) = (observed.claim, observed.driver, observed.policy);
    check_claim(observed)?;
    let parameters = ClassParameters::of(class)?;
    let is_block = claim.volume_mode == Some(VolumeMode::Block);
    let named = parameters.fs_type.filter(|fs_type| !fs_type.is_empty());
    let fs_type: &str = if is_block {
        ""
    } else {
        named.unwrap_or(&policy.default_fs_type)
    };
    let capabilities = capabilities(observed, class, is_block, fs_type)?;
    let (secret, secrets) = secrets(observed, &parameters, name, recorded, is_wanted)?;
    let metadata = [
        ("csi.storage.k8s.io/pvc/name", &*claim.name),
        ("csi.storage.k8s.io/pvc/namespace", &*claim.namespace),
        ("csi.storage.k8s.io/pv/name", name),
    ];
    let (accessibility, segment) = topology(observed, class, recorded, is_wanted)?;
    let read_only = policy.read_only_many && *claim.access_modes == [ClaimAccessMode::ReadOnlyMany];
    Ok(CreatePlan {
        name: name.into(),
        required_bytes: size(observed)?,
        capabilities,
        parameters: parameters.sent_with(if policy.create_metadata { &metadata } else { &[] }),
        secret,
        has_topology: driver.capabilities.accessibility_constraints || recorded.first.is_some(),
        accessibility,
        segment,
        // A refusal of the call says nothing of a node that was selected since.
        node: recorded.node.map(Arc::from).or_else(|| claim.selected_node.clone()),
        volume: VolumeTemplate {
            provisioner: class.provisioner.clone(),
            class: claim.class.clone(),
            class_uid: class.uid.clone(),
            class_hash: class.told_hash.clone(),
            allowed_hash: class.allowed_hash.clone(),
            reclaim_policy: class.reclaim_policy,
            access_modes: claim.access_modes.clone(),
            volume_mode: claim.volume_mode,
            mount_options: class.mount_options.clone(),
            fs_type: fs_type.into(),
            read_only,
            secrets,
        },
    })
}

/// The topology that is asked for, and that of the selected node. A call that asked for none is repeated without one: with it the driver may
/// make a second volume elsewhere.
///
/// A volume that nobody wants is only found by its name, and undone. Where nothing is recorded of it, it does not wait for a node that may
/// never come back: it is asked for as if none were selected, or without a topology. A node that is not known is waited for.
fn topology(
    observed: &ObservedClaim<'_>,
    class: &StorageClass,
    recorded: RecordedArguments<'_>,
    is_wanted: bool,
) -> Result<(Option<TopologyRequirement>, Option<Segment>), ProvisionRefusal> {
    let (claim, driver) = (observed.claim, observed.driver);
    if !driver.capabilities.accessibility_constraints {
        return Ok((None, None));
    }
    if recorded.without_topology {
        return Ok((None, recorded.segment.cloned()));
    }
    let query = TopologyQuery {
        driver: &driver.name,
        class,
        claim: &claim.name,
        selected: claim.selected_node.as_ref().map(|node| (node, observed.node)),
        recorded_segment: recorded.segment,
        recorded_first: recorded.first,
        facts: observed.topology,
        policy: observed.policy,
    };
    let may_be_anywhere = !is_wanted && !recorded.is_placed() && !observed.node.is_unknown();
    match requirement(&query) {
        Err(refusal) if may_be_anywhere && refusal.is_missing_topology() => {
            let unplaced = TopologyQuery {
                selected: None,
                ..query
            };
            Ok(requirement(&unplaced).unwrap_or_default())
        }
        found => found,
    }
}

fn check_claim(observed: &ObservedClaim<'_>) -> Result<(), ProvisionRefusal> {
    let (claim, driver) = (observed.claim, observed.driver);
    if !driver.capabilities.create_delete_volume {
        return Err(ProvisionRefusal::NotSupported(driver.name.clone()));
    }
    if claim.has_selector {
        return Err(ProvisionRefusal::Selector);
    }
    if let Some(source) = &claim.data_source {
        return Err(ProvisionRefusal::DataSourceNotSupported {
            kind: source.kind.clone(),
        });
    }
    match &claim.attributes_class {
        Some(class) => Err(ProvisionRefusal::AttributesClassNotSupported(class.clone())),
        None => Ok(()),
    }
}

fn size(observed: &ObservedClaim<'_>) -> Result<i64, ProvisionRefusal> {
    let text = observed.claim.requested.as_deref().unwrap_or_default();
    let bytes = parse_bytes(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| ProvisionRefusal::Size(crate::decide::cut(text, 64).into()))
}

/// Each access mode is mapped alone.
fn capabilities(
    observed: &ObservedClaim<'_>,
    class: &StorageClass,
    is_block: bool,
    fs_type: &str,
) -> Result<Vec<VolumeCapability>, ProvisionRefusal> {
    let finer = observed.driver.capabilities.single_node_multi_writer;
    let mode = |mode: &ClaimAccessMode| match mode {
        ClaimAccessMode::ReadWriteOnce if finer => Ok(AccessMode::SingleNodeMultiWriter),
        ClaimAccessMode::ReadWriteOncePod if finer => Ok(AccessMode::SingleNodeSingleWriter),
        ClaimAccessMode::ReadWriteOnce | ClaimAccessMode::ReadWriteOncePod => Ok(AccessMode::SingleNodeWriter),
        ClaimAccessMode::ReadOnlyMany => Ok(AccessMode::MultiNodeReaderOnly),
        ClaimAccessMode::ReadWriteMany => Ok(AccessMode::MultiNodeMultiWriter),
        ClaimAccessMode::Other => Err(ProvisionRefusal::AccessModes),
    };
    if observed.claim.access_modes.is_empty() {
        return Err(ProvisionRefusal::AccessModes);
    }
    let access = || {
        if is_block {
            return ClaimAccessType::Block;
        }
        ClaimAccessType::Mount {
            fs_type: fs_type.into(),
            flags: class.mount_options.clone(),
        }
    };
    let capability = |one| -> Result<_, ProvisionRefusal> {
        let (access, mode) = (access(), mode(one)?);
        Ok(VolumeCapability { access, mode })
    };
    observed.claim.access_modes.iter().map(capability).collect()
}

/// The Secret of the calls and the references for the PersistentVolume. A call that is open is repeated with the Secret that it was made
/// with: with another one it may be about another storage system, or be refused. The references are no argument of a call: where nobody
/// wants the volume, one that cannot be told any more is left out, and holds up nothing.
fn secrets(
    observed: &ObservedClaim<'_>,
    parameters: &ClassParameters<'_>,
    name: &str,
    recorded: RecordedArguments<'_>,
    is_wanted: bool,
) -> Result<(Option<SecretReference>, BTreeMap<SecretFamily, SecretReference>), ProvisionRefusal> {
    let context = TemplateContext::of(observed.claim, name);
    let of = |family| parameters.secrets.resolve(family, &context);
    let secret = match recorded.secret {
        Some(secret) => Some(secret.clone()),
        None => of(SecretFamily::Provisioner)?,
    };
    let mut references = BTreeMap::new();
    let is_other = |family: &SecretFamily| !matches!(family, SecretFamily::Default | SecretFamily::Provisioner);
    for family in SecretFamily::ALL.iter().copied().filter(is_other) {
        match of(family) {
            Ok(named) => references.extend(named.map(|secret| (family, secret))),
            Err(_) if !is_wanted => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok((secret, references))
}
