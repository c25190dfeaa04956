//! Tables and properties of the provisioner's decision core.
//!
//! Tables that are marked with the name of a test tell the scenarios of external-provisioner's own unit tests again, as data for the
//! functions here; rows end with a remark where we differ on purpose. [`tally`] says how many there are of each.

mod attempt;
mod bad_input;
mod builders;
mod claim_rows;
mod class;
mod codes;
mod deletion;
mod distributed;
mod marker;
mod ownership;
mod patches;
mod persistent_volume;
mod properties;
mod records;
mod release_requests;
mod secrets;
mod sidecar;
mod table;
mod topology;
mod troubles;
mod volume_rows;
mod words;

/// Says how many rows a table of the sidecar's own tests has here.
#[allow(clippy::print_stdout, reason = "read by a script")]
pub fn tally(test: &str, rows: usize) {
    println!("\nprovisioner table|{test}|{rows}");
}
