//! CSI attacher operator.

pub mod csi;
pub mod mock;
