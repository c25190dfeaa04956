//! Placeholder until the proto is compiled.
fn main() {}
