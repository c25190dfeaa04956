//! An API server that is far away: a proxy holds each request back, and the operator attaches as fast as without that.
//!
//! Rounds without a delay and with one take turns, each with one driver and with two. The proxy is there in both. Another
//! limit of requests in flight is compared by another build of the operator.
//!
//! Environment: `VOLUMES` (800), `DELAY_MS` of a request (25), `ROUNDS` (3), `OPERATOR_BINARY`.

use std::time::{Duration, Instant};

use crate::cluster::{Bench, no_volumes};
use crate::fleet::{Fleet, Plan};
use crate::recorder::Stage;
use crate::requests::send_all;
use crate::stats::{each_of, median, ms};
use crate::support::Result;
use crate::support::proxy::{Fault, Proxy};
use crate::table::{Row, Topic};
use crate::{progress, setting};

/// Rates, and milliseconds of CPU time of the operator for each volume.
#[derive(Default)]
struct Rounds {
    rates: Vec<f64>,
    cpu: Vec<f64>,
}

/// Measures.
pub async fn measure() -> Result<Vec<Row>> {
    let (volumes, rounds) = (setting("VOLUMES", 800)?, setting("ROUNDS", 3)?);
    let delay = Duration::from_millis(setting("DELAY_MS", 25)? as u64);
    let mut fleet = Fleet::start(Plan::new("distant", 2, volumes)).await?.stop().await?;
    let proxy = Proxy::start(&fleet.kubeconfig).await?;
    fleet.kubeconfig = proxy.kubeconfig(&fleet.kubeconfig)?;
    let fleet = fleet.start_again()?;
    fleet.operator.wait_ready().await?;
    fleet.wait_served().await?;
    progress("distant: warming up");
    burst(&fleet, 1, "warm", volumes.min(200), &mut Rounds::default()).await?;
    let mut rows = Vec::new();
    for drivers in [1, 2] {
        let (mut near, mut far) = (Rounds::default(), Rounds::default());
        for round in 0..rounds {
            progress(&format!("distant: {drivers} drivers, round {} of {rounds}", round + 1));
            proxy.heal();
            burst(&fleet, drivers, &format!("near{drivers}r{round}"), volumes, &mut near).await?;
            proxy.fault(Fault::Slow(delay), usize::MAX, |seen| !seen.is_watch());
            burst(&fleet, drivers, &format!("far{drivers}r{round}"), volumes, &mut far).await?;
        }
        proxy.heal();
        let what = format!(
            "API server {} ms away, {volumes} volumes of {drivers} drivers",
            delay.as_millis()
        );
        let (near_rate, far_rate) = (median(near.rates), median(far.rates));
        rows.push(
            Row::new(Topic::Rate, format!("{what}: attaches a second"), far_rate, "/s")
                .against("no delay", near_rate)
                .ratio_at_least(0.9),
        );
        let (near_cpu, far_cpu) = (median(near.cpu), median(far.cpu));
        rows.push(Row::new(Topic::Cpu, format!("{what}: CPU of a cycle"), far_cpu, "ms").against("no delay", near_cpu));
    }
    Ok(rows)
}

/// Attaches the volumes, shared by so many drivers, and removes them.
async fn burst(fleet: &Fleet, drivers: usize, group: &str, volumes: usize, rounds: &mut Rounds) -> Result<()> {
    let share = volumes / drivers;
    let groups: Vec<String> = (0..drivers).map(|driver| format!("{group}d{driver}")).collect();
    for (driver, group) in groups.iter().enumerate() {
        let driver = fleet.driver(driver);
        fleet.bench.create_volumes(group, &driver, share).await?;
    }
    let (started, cpu) = (Instant::now(), fleet.cpu()?);
    for (driver, group) in groups.iter().enumerate() {
        let attachments = Bench::attachments(group, &fleet.driver(driver), share);
        send_all(&fleet.bench.client, attachments).await?;
    }
    for group in &groups {
        fleet.wait(group, Stage::Attached, share).await?;
    }
    rounds
        .rates
        .push((share * drivers) as f64 / started.elapsed().as_secs_f64());
    for group in &groups {
        fleet.remove(group, share).await?;
    }
    no_volumes(&fleet.bench).await?;
    rounds
        .cpu
        .push(ms(each_of(fleet.cpu()?.saturating_sub(cpu), share * drivers)));
    Ok(())
}
