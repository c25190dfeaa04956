//! Section 8.4: error code, read-only. Its rows about ListVolumes are in `reconcile.rs`.

use serde_json::json;

use super::builders::{attachment, volume};
use super::table::{done, play, row, tally};
use super::world::{NOW, capable, on_node, world};
use crate::decide::{Capabilities, Failure};

#[test]
fn a_full_node_is_told_by_its_code() {
    let exhausted = Failure {
        message: "rpc error: code = ResourceExhausted desc = mock rpc error".to_owned(),
        code: Some(8),
    };
    let rows = vec![vec![row(
        "the code is saved",
        on_node(volume().protected()).va(attachment()).answer(Err(exhausted)),
        "FIN+ | pub handle1 nodeID1 rw | AERR(rpc error: code = ResourceExhausted desc = mock rpc error, 8) \
         | pub handle1 nodeID1 rw | ATT",
        "RF",
    )]];
    tally("8.4", "error code", play(rows));
}

#[test]
fn only_a_driver_that_can_is_asked_for_read_only() {
    let cannot = Capabilities {
        publish_readonly: false,
        ..capable()
    };
    let with = |volume| world().capabilities(cannot).pv(volume).node().va(attachment());
    let rows = vec![done("FIN+ | pub handle1 nodeID1 rw | ATT").when(vec![
        ("read-write", with(volume().protected())),
        ("read-only", with(volume().protected().read_only())),
    ])];
    tally("8.4", "read-only", play(rows));
}

#[test]
fn times_are_written_in_whole_seconds() {
    let mut world = world().pv(volume().protected()).va(attachment());
    world.attempt();
    let error = &world.attachment.unwrap()["status"]["attachError"];
    assert_eq!(error["time"], json!(NOW));
    assert!(error.get("errorCode").is_none(), "a refusal of ours has no code");
}
