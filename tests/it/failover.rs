//! A short run of `make failover`, by the flags of the sidecar. Replicas by an AttacherConfig are `replicas`, and those of `make chaos`.

#[path = "../failover/mod.rs"]
#[allow(dead_code, reason = "`make failover` plays both modes")]
mod harness;

use harness::{End, Mode, Plan};

use crate::support::Result;

#[tokio::test]
async fn replicas_configured_by_flags_lose_nothing_and_do_nothing_twice() -> Result<()> {
    let _permit = crate::rig::own_control_plane().await;
    let plan = Plan {
        binary: env!("CARGO_BIN_EXE_csi-attacher-operator").into(),
        mode: Mode::Flags,
        rounds: 9,
        kill_every: 3,
        replicas: 2,
        volumes: 40,
        audited: true,
    };
    let report = harness::run(plan, |_| {}).await?;
    println!("{report}");
    assert!(report.found.replicas >= 9, "{report}");
    let (told, killed): (Vec<_>, Vec<_>) = report.ended.iter().partition(|ended| ended.end == End::Told);
    assert_eq!((told.len(), killed.len()), (6, 3), "{report}");
    // A machine on which each loses its Lease before it could hand it over would prove nothing.
    assert!(told.iter().any(|ended| !ended.lost_the_lease), "{report}");
    Ok(())
}
