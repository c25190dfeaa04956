//! A short run of `make failover`.

#[path = "../failover/mod.rs"]
mod harness;

use std::time::Duration;

use harness::{End, Mode, Plan, Report};

use crate::support::{Error, Result};

async fn short_run(mode: Mode) -> Result<Report> {
    let _permit = crate::rig::own_control_planes(1).await;
    let plan = Plan {
        binary: env!("CARGO_BIN_EXE_csi-attacher-operator").into(),
        mode,
        rounds: 9,
        kill_every: 3,
        replicas: 2,
        volumes: 40,
        per_second: 40,
        audited: true,
        call: [Duration::from_millis(20), Duration::from_millis(100)],
    };
    let run = harness::run(plan.clone(), |_| {});
    let run = tokio::time::timeout(plan.limit(), Box::pin(run)).await;
    run.map_err(|_| Error::Other(format!("not done within {:?}", plan.limit())))?
}

fn assert_sound(report: &Report) {
    println!("{report}");
    assert!(report.is_sound(), "{report}");
    assert_eq!((report.told.len(), report.killed.len()), (6, 3), "{report}");
    assert!(report.found.replicas >= 9, "{report}");
    let of = |end: End| report.ended.iter().filter(|ended| ended.end == end).collect::<Vec<_>>();
    assert_eq!((of(End::Told).len(), of(End::Killed).len()), (6, 3), "{report}");
    // A machine on which each loses its Lease before it could hand it over would prove nothing.
    assert!(of(End::Told).iter().any(|ended| !ended.lost_the_lease), "{report}");
}

#[tokio::test]
async fn replicas_configured_by_flags_lose_nothing_and_do_nothing_twice() -> Result<()> {
    assert_sound(&short_run(Mode::Flags).await?);
    Ok(())
}

#[tokio::test]
async fn replicas_configured_by_an_attacher_config_lose_nothing_and_do_nothing_twice() -> Result<()> {
    assert_sound(&short_run(Mode::Config).await?);
    Ok(())
}
