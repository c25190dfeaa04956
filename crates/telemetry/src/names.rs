//! Names of spans and attributes, and the two spellings of a gRPC status code.
//!
//! The names follow the OpenTelemetry semantic conventions (schema [`SCHEMA_URL`]) where those have one; everything
//! else carries the `attacher.` prefix, because an application may not extend a namespace of the conventions.
//! All of them are declared in the registry (`tests/trace-registry`), from which the constants are made. This module holds
//! constants and pure functions only.

mod registry;

use tonic::Code;

use csi_attacher_model::decide::grpc_code;
pub use registry::{SCHEMA_URL, attr, error_type, event, span};

/// Name of the instrumentation scope of every span of this program, and the default `service.name`.
pub const SERVICE_NAME: &str = "csi-attacher-operator";

/// Value of [`attr::RPC_SYSTEM_NAME`].
pub const RPC_SYSTEM_GRPC: &str = "grpc";
/// Name of the VolumeAttachment work queue, as the incumbent's dashboards know it.
pub const QUEUE_VOLUME_ATTACHMENT: &str = "csi-attacher-va";
/// Name of the PersistentVolume work queue, as the incumbent's dashboards know it.
pub const QUEUE_PERSISTENT_VOLUME: &str = "csi-attacher-pv";
/// Name of the queue of PersistentVolumeClaims, as external-provisioner has it.
pub const QUEUE_CLAIMS: &str = "claims";
/// Name of the queue of PersistentVolumes whose volume may have to be deleted, as external-provisioner has it.
pub const QUEUE_VOLUMES: &str = "volumes";
/// Name of what external-provisioner has a queue for: volumes that are created and not saved as PersistentVolumes yet.
pub const QUEUE_UNSAVED_VOLUMES: &str = "unsavedpvs";

/// The span form of a gRPC path: without the leading slash (`csi.v1.Controller/ControllerPublishVolume`).
pub fn csi_method(path: &str) -> &str {
    path.strip_prefix('/').unwrap_or(path)
}

/// Text of a gRPC status code for spans, as the gRPC specification spells it (`DEADLINE_EXCEEDED`).
pub const fn code_upper_snake(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Text of a gRPC status code for metrics and messages, as grpc-go spells it (`DeadlineExceeded`, `Canceled`), so that
/// dashboards written for the Go sidecars keep working.
pub fn code_camel_case(code: Code) -> &'static str {
    grpc_code::name(code.into()).unwrap_or_default()
}

/// `event.name` of the log record of a call that failed: the name that the semantic conventions have for what was an exception of a call.
pub const CALL_EXCEPTION: &str = "rpc.client.call.exception";

/// Whose attempts fail for a cause.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailsFor {
    Attaching,
    Provisioning,
    Both,
}

use FailsFor::{Attaching, Both, Provisioning};

/// What makes an attempt fail beside gRPC codes: as spans name it, and as status, log and metrics do.
const CAUSES: [(&str, &str, FailsFor); 32] = [
    (error_type::PV_NOT_FOUND, "VolumeMissing", Attaching),
    (error_type::PV_DELETING, "VolumeDeleting", Both),
    (error_type::VOLUME_UNKNOWN, "VolumeUnknown", Attaching),
    (error_type::CSINODE_MISSING, "CSINodeMissing", Attaching),
    (error_type::SECRET_MISSING, "SecretMissing", Both),
    (error_type::SECRET_FORBIDDEN, "SecretForbidden", Both),
    (error_type::SECRET_NOT_ALLOWED, "SecretNotAllowed", Both),
    (error_type::VOLUME_SHARED, "VolumeShared", Attaching),
    (error_type::CAPABILITY_LOST, "CapabilityLost", Attaching),
    (error_type::CONFIG_DELETING, "ConfigDeleting", Attaching),
    (error_type::CONFLICT, "Conflict", Attaching),
    (error_type::INVALID_SPEC, "InvalidSpec", Attaching),
    (error_type::SHUTDOWN, "Shutdown", Attaching),
    (error_type::CAPABILITY_MISSING, "CapabilityMissing", Provisioning),
    (error_type::CLASS_MISSING, "ClassMissing", Provisioning),
    (error_type::CLASS_MISMATCH, "ClassMismatch", Provisioning),
    (error_type::CLASS_REPLACED, "ClassReplaced", Provisioning),
    (error_type::INVALID_CLASS, "InvalidClass", Provisioning),
    (error_type::INVALID_CLAIM, "InvalidClaim", Provisioning),
    (error_type::NOT_SUPPORTED, "NotSupported", Provisioning),
    (error_type::TOPOLOGY_MISSING, "TopologyMissing", Provisioning),
    (error_type::UNCONFIRMED, "Unconfirmed", Both),
    (error_type::NAME_TAKEN, "NameTaken", Provisioning),
    (
        error_type::MARKER_OF_ANOTHER_DRIVER,
        "MarkerOfAnotherDriver",
        Provisioning,
    ),
    (error_type::INVALID_ANSWER, "InvalidAnswer", Provisioning),
    (error_type::PV_REFUSED, "VolumeRefused", Provisioning),
    (error_type::HANDLE_SHARED, "HandleShared", Provisioning),
    (error_type::DELETION_HELD, "DeletionHeld", Provisioning),
    (error_type::STILL_ATTACHED, "StillAttached", Provisioning),
    (error_type::VOLUME_UNRECORDED, "VolumeUnrecorded", Provisioning),
    (error_type::DRIVER_UNAVAILABLE, "DriverUnavailable", Both),
    (error_type::OTHER, "Other", Both),
];

/// The names of the causes that attempts of this role have.
pub(crate) fn causes_of(role: FailsFor) -> impl Iterator<Item = &'static str> {
    let causes = CAUSES
        .into_iter()
        .filter(move |(.., fails_for)| [role, Both].contains(fails_for));
    causes.map(|(_, name, _)| name)
}

/// The name in status, log and metrics of a cause that spans have as an [`error_type`].
pub fn cause_camel_case(cause: &'static str) -> &'static str {
    let known = CAUSES.iter().find(|(known, ..)| *known == cause);
    known.map_or(cause, |(_, name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_of_the_registry_has_a_name() {
        let registry = include_str!("names/registry.rs");
        let causes = registry
            .lines()
            .skip_while(|line| *line != "pub mod error_type {")
            .take_while(|line| *line != "}")
            .filter(|line| line.trim_start().starts_with("pub const "))
            .filter_map(|line| line.split('"').nth(1));
        let causes: Vec<_> = causes.collect();
        assert_eq!(causes.len(), CAUSES.len());
        for cause in causes {
            assert!(CAUSES.iter().any(|(known, ..)| *known == cause), "{cause}");
        }
    }

    #[test]
    fn both_spellings_of_every_code_name_the_same_code() {
        for number in 0..=16 {
            let code = Code::from_i32(number);
            let folded = code_upper_snake(code).replace('_', "").to_lowercase();
            let camel = code_camel_case(code).to_lowercase();
            if code == Code::Cancelled {
                assert_eq!((folded.as_str(), camel.as_str()), ("cancelled", "canceled"));
            } else {
                assert_eq!(folded, camel);
            }
        }
        assert_eq!(code_upper_snake(Code::DeadlineExceeded), "DEADLINE_EXCEEDED");
        assert_eq!(code_camel_case(Code::Ok), "OK");
    }

    #[test]
    fn span_method_has_no_leading_slash() {
        assert_eq!(csi_method("/csi.v1.Identity/Probe"), "csi.v1.Identity/Probe");
        assert_eq!(csi_method("csi.v1.Identity/Probe"), "csi.v1.Identity/Probe");
    }
}
