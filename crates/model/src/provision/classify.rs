//! What the status codes of CreateVolume and DeleteVolume mean.
//!
//! The rules of attaching do not hold here: RESOURCE_EXHAUSTED and ALREADY_EXISTS mean other things, so that there is no common table.

use super::creation::Deletion;
use super::policy::OrphanVolumePolicy;
use crate::decide::grpc_code;

// Codes of gRPC that only provisioning tells apart.
const INVALID_ARGUMENT: i32 = 3;
const UNKNOWN: i32 = 2;
const ALREADY_EXISTS: i32 = 6;
const PERMISSION_DENIED: i32 = 7;
const UNIMPLEMENTED: i32 = 12;
const UNAUTHENTICATED: i32 = 16;
const INTERNAL: i32 = 13;
/// The greatest status code of gRPC.
const LAST_CODE: i32 = 16;

/// What an error that CreateVolume was answered with means (CSI spec, "CreateVolume Errors").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateErrorClass {
    /// The driver may still work on it, or may have done it.
    Uncertain,
    /// There is no room: another node may have some, else it is retried. Some drivers say so of requests that are too many: then it says
    /// nothing of an earlier call.
    Exhausted,
    /// It cannot succeed with these arguments.
    Infeasible,
    /// A volume of this name with other arguments exists. It says nothing of an earlier call whose outcome is not known.
    NameInUse,
    /// The call was not let in to what makes volumes: there is none of it. It says nothing of an earlier call whose outcome is not known.
    NotAdmitted,
    /// There is no volume, unless an earlier call may have made one: some drivers answer so while they work on it, as for a conflict in their storage system.
    Doubtful,
    /// There is no volume.
    Final,
}

/// The class of an error of CreateVolume; `None` is an answer without a status: the transport failed, or the answer was unreadable.
pub const fn create_error(code: Option<i32>) -> CreateErrorClass {
    match code {
        None
        | Some(grpc_code::CANCELLED | grpc_code::DEADLINE_EXCEEDED | grpc_code::UNAVAILABLE | grpc_code::ABORTED) => {
            CreateErrorClass::Uncertain
        }
        Some(grpc_code::RESOURCE_EXHAUSTED) => CreateErrorClass::Exhausted,
        Some(INVALID_ARGUMENT) => CreateErrorClass::Infeasible,
        Some(ALREADY_EXISTS) => CreateErrorClass::NameInUse,
        Some(PERMISSION_DENIED | UNIMPLEMENTED | UNAUTHENTICATED) => CreateErrorClass::NotAdmitted,
        Some(INTERNAL | UNKNOWN | grpc_code::FAILED_PRECONDITION) => CreateErrorClass::Doubtful,
        // OK is no error, and what is beyond the codes of gRPC says nothing.
        Some(code) if code <= grpc_code::OK || code > LAST_CODE => CreateErrorClass::Uncertain,
        Some(_) => CreateErrorClass::Final,
    }
}

/// What an answer to DeleteVolume says (CSI spec, "DeleteVolume Errors"); `None` is an answer without a status.
pub const fn delete_answer(code: Option<i32>, orphans: OrphanVolumePolicy) -> Deletion {
    match (code, orphans) {
        (Some(grpc_code::OK), _) | (Some(grpc_code::NOT_FOUND), OrphanVolumePolicy::TreatNotFoundAsDeleted) => {
            Deletion::Deleted
        }
        // What leaves open whether a volume was made leaves open whether it was deleted.
        _ if matches!(create_error(code), CreateErrorClass::Uncertain) => Deletion::Uncertain,
        _ => Deletion::NotDeleted,
    }
}
