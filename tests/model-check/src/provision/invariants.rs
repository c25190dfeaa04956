//! The properties of the worlds of the provisioner.

pub const MARKED: &str = "CreateVolume is called only for a claim that carries a marker of this process";
pub const MARKER_LEAVES: &str = "a marker leaves only when no volume can be left that no PersistentVolume names";
pub const RELEASED: &str =
    "DeleteVolume of a PersistentVolume only after a live read that shows it Released with policy Delete";
pub const NOT_SHARED: &str = "DeleteVolume only while no other PersistentVolume has the handle";
pub const NOT_ATTACHED: &str =
    "DeleteVolume only while no VolumeAttachment is seen that names the PersistentVolume, be it there or not";
pub const NOT_CLAIMED: &str =
    "DeleteVolume only while the claim of the PersistentVolume is not there, or bound to another one";
pub const UNDONE: &str = "a new volume is undone only after a live read that shows no PersistentVolume with it";
pub const KEPT: &str = "the volume of a bound claim stays";
pub const FINALIZER: &str = "the finalizer leaves a PersistentVolume only after OK, or by its policy, or where another one goes with its volume";
pub const FOREIGN: &str = "what others wrote stays";
pub const SAME: &str = "a PersistentVolume is deleted only under the UID that was read";
pub const LEASED: &str = "no call without the Lease";
pub const CREATION: &str = "only the answer of a call changes what is known of a volume";
pub const ALONE: &str = "CreateVolume and DeleteVolume of one volume never overlap in one process";
pub const PLACED: &str = "the selected node is taken off a claim only when no call may have made a volume";
pub const SAME_PLACE: &str = "while a call may have made a volume, each call asks for the same place first";
pub const WANTED: &str = "in the end a wanted claim is bound to its PersistentVolume";
pub const UNWANTED: &str = "in the end an unwanted claim is gone";
pub const NOTHING_LEFT: &str = "in the end no marker and no finalizer of ours is left";
pub const NAMED: &str = "in the end the driver's volumes are those that PersistentVolumes name";
