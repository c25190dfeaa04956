//! The numbers of the gRPC status codes that the rules know, and the names of all codes. They are part of the protocol.

/// The call succeeded.
pub const OK: i32 = 0;
/// The caller gave up.
pub const CANCELLED: i32 = 1;
/// The call took longer than the caller allowed.
pub const DEADLINE_EXCEEDED: i32 = 4;
/// What the call is about does not exist.
pub const NOT_FOUND: i32 = 5;
/// A limit is reached.
pub const RESOURCE_EXHAUSTED: i32 = 8;
/// The state of the volume does not allow the call.
pub const FAILED_PRECONDITION: i32 = 9;
/// Another operation is in progress.
pub const ABORTED: i32 = 10;
/// The driver cannot be reached.
pub const UNAVAILABLE: i32 = 14;

/// The names by number, as grpc-go spells them (`DeadlineExceeded`, `Canceled`) and the Go sidecars have them in errors and metrics.
const NAMES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// The name of a code; none for a number that is no code.
pub fn name(code: i32) -> Option<&'static str> {
    usize::try_from(code).ok().and_then(|at| NAMES.get(at).copied())
}

/// The code of this name.
pub fn of_name(name: &str) -> Option<i32> {
    let at = NAMES.iter().position(|known| *known == name)?;
    i32::try_from(at).ok()
}
