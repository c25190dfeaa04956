//! The invariants by name. Each mutant names those that must catch it.

pub const ONE_AT_A_TIME: &str = "no two calls at once for a volume and a node";
pub const ONLY_WITH_THE_LEASE: &str = "no call without the Lease";
pub const ONE_LEADER: &str = "no call by a replica before the time of another one is over";
pub const NAMED: &str = "no call without a volume and a node ID";
pub const ONCE_CLAIMED: &str =
    "no Unpublish of a volume that no attachment was claimed for, and no sidecar may have published";
pub const CLAIMED_FIRST: &str = "no Publish without finalizer, node ID and volume on the attachment";
pub const PROTECTED_FIRST: &str = "no Publish without finalizer on the PersistentVolume";
pub const WANTED: &str = "no Publish for what is known to be deleted or attached";
pub const NOT_UNDER_A_LIVE_ONE: &str = "no Unpublish under a live attachment";
pub const RIGHT_DRIVER: &str = "no call about another driver's volume";
pub const RIGHT_REQUEST: &str = "a Publish says what the PersistentVolume says";
pub const RIGHT_SECRET: &str = "a call carries the Secret of its volume";
pub const ALLOWED_SECRET: &str = "no driver is sent a Secret that it may not have";
pub const HELD_WHILE_PUBLISHED: &str = "no VolumeAttachment is released while its volume may be published";
pub const PROTECTED_WHILE_PUBLISHED: &str = "no PersistentVolume is released while it may be published";
pub const PROTECTED_WHILE_NAMED: &str = "no PersistentVolume is released while an attachment of ours names it";
pub const FOREIGN_PARTS: &str = "finalizers and annotations of others survive";
pub const RELEASED_FIRST: &str = "our finalizer goes before the status says detached";
pub const PUBLISHED_FIRST: &str = "only what is published is recorded as attached";
pub const RIGHT_CONTEXT: &str = "the status shows the publish context that the driver answered";
pub const NO_BUSY_LOOP: &str = "no busy loop";
pub const NO_FORGOTTEN_WAIT: &str = "a wait ends with what waits";
pub const DETACHED_AND_GONE: &str = "a deleted VolumeAttachment is detached and goes";
pub const VOLUME_GOES: &str = "a deleted PersistentVolume that nobody names goes";
pub const NOTHING_LEFT: &str = "nothing is published that no attachment holds";
pub const ATTACHED_IS_PUBLISHED: &str = "what is attached is published";
pub const NOT_FOR_A_GAP: &str = "nothing is unpublished only because a list does not show its attachment";
pub const ATTACHED_IS_PROTECTED: &str = "the PersistentVolume of what is attached is protected";
pub const ATTACHED_WITHOUT_ERROR: &str = "what is attached shows no attachError";
pub const ATTACHES: &str = "what can be attached is attached";
pub const TAKEN_BACK: &str = "the volume of an attachment that vanished during Publish is taken back";
pub const QUICK_BESIDE_SLOW: &str = "a driver whose requests are quick does not wait for another's slow ones";
pub const NO_LIST_FOR_A_STALL: &str = "a stall of the API server costs no list";
pub const NOT_HELD_BACK: &str = "attaches are held back only when the API server went back";
