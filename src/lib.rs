//! CSI attacher operator.
pub mod queue;
