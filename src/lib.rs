//! CSI attacher operator.
pub mod api;
