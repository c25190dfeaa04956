//! CSI attacher operator.

pub mod csi;
