//! The numbers of the gRPC status codes that the rules know. They are part of the protocol.

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
/// Another operation is in progress.
pub const ABORTED: i32 = 10;
/// The driver cannot be reached.
pub const UNAVAILABLE: i32 = 14;
