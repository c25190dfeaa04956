//! Proves of the test support that nothing outlives a test.

mod processes;
