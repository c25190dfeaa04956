//! The operator binary.
fn main() {}
