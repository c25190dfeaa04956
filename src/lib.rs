//! CSI attacher operator.
