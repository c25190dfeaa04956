//! What came out, as a table.

use std::fmt;
use std::time::Duration;

use super::Sizes;

/// The bar of the ratio of the 99th percentiles.
const BAR: f64 = 1.2;

/// What a stretch of time cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    /// CPU time of operator, API server, etcd and benchmark, which holds all drivers.
    pub cpu: [Duration; 4],
    /// Requests that the operator sent.
    pub requests: u64,
    /// Calls that reached the nine.
    pub calls: u64,
}

impl Costs {
    /// The difference to an earlier state.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut cpu = self.cpu;
        for (now, then) in cpu.iter_mut().zip(earlier.cpu) {
            *now = now.saturating_sub(then);
        }
        Self {
            cpu,
            requests: self.requests - earlier.requests,
            calls: self.calls - earlier.calls,
        }
    }
}

/// All rounds of one kind.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Times of each round, sorted: of the tenth driver and of the writes alone.
    rounds: Vec<[Vec<Duration>; 2]>,
    costs: Costs,
    took: Duration,
}

impl Side {
    /// Takes in a round.
    pub fn add(&mut self, operator: Vec<Duration>, own: Vec<Duration>, costs: Costs, took: Duration) {
        self.rounds.push([operator, own]);
        for (sum, one) in self.costs.cpu.iter_mut().zip(costs.cpu) {
            *sum += one;
        }
        self.costs.requests += costs.requests;
        self.costs.calls += costs.calls;
        self.took += took;
    }

    fn pooled(&self, which: usize) -> Vec<Duration> {
        let mut all: Vec<Duration> = self.rounds.iter().flat_map(|round| &round[which]).copied().collect();
        all.sort();
        all
    }

    fn per_second(&self, number: u64) -> f64 {
        number as f64 / self.took.as_secs_f64()
    }
}

/// The figures of a run.
pub struct Report {
    /// How large it was.
    pub sizes: Sizes,
    /// The nine at rest.
    pub idle: Side,
    /// The nine in full swing.
    pub hostile: Side,
}

/// The value at a percentile of sorted times.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

impl Report {
    fn row(&self, formatter: &mut fmt::Formatter<'_>, what: &str, which: usize, percent: usize) -> fmt::Result {
        let (idle, hostile) = (self.idle.pooled(which), self.hostile.pooled(which));
        let (idle, hostile) = (percentile(&idle, percent), percentile(&hostile, percent));
        let ratio = hostile.as_secs_f64() / idle.as_secs_f64();
        let bar = if which == 0 && percent == 99 {
            format!("  <= {BAR}")
        } else {
            String::new()
        };
        let what = format!("{what} p{percent}");
        writeln!(
            formatter,
            "{what:<32} {:>11} {:>11} {ratio:>7.2}{bar}",
            ms(idle),
            ms(hostile)
        )
    }

    fn costs(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["operator", "API server", "etcd", "bench and drivers"];
        for (at, name) in names.into_iter().enumerate() {
            let share = |side: &Side| side.costs.cpu[at].as_secs_f64() / side.took.as_secs_f64();
            let what = format!("CPU of {name}");
            writeln!(
                formatter,
                "{what:<32} {:>6.2} core {:>6.2} core",
                share(&self.idle),
                share(&self.hostile)
            )?;
        }
        for (what, of) in [
            (
                "requests of the operator",
                (|costs: &Costs| costs.requests) as fn(&Costs) -> u64,
            ),
            ("calls to the nine", |costs| costs.calls),
        ] {
            let rate = |side: &Side| side.per_second(of(&side.costs));
            writeln!(
                formatter,
                "{what:<32} {:>8.1} /s {:>8.1} /s",
                rate(&self.idle),
                rate(&self.hostile)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sizes {
            rounds,
            count,
            rate,
            hostile,
            churn,
        } = self.sizes;
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
        writeln!(
            formatter,
            "10 drivers, {rounds} rounds of each kind with {count} attaches, {rate} a second; {hostile} attachments of each of \
             the nine, {churn} attaches and detaches a second of the ninth; {cores} cores for all"
        )?;
        writeln!(
            formatter,
            "{:<32} {:>11} {:>11} {:>7}",
            "", "nine rest", "full swing", "ratio"
        )?;
        for percent in [50, 90, 99, 100] {
            self.row(formatter, "attach of the tenth:", 0, percent)?;
        }
        for percent in [50, 90, 99, 100] {
            self.row(formatter, "the same writes, no operator:", 1, percent)?;
        }
        for (round, (idle, hostile)) in self.idle.rounds.iter().zip(&self.hostile.rounds).enumerate() {
            let [idle, hostile] = [idle, hostile].map(|round| percentile(&round[0], 99));
            let ratio = hostile.as_secs_f64() / idle.as_secs_f64();
            let what = format!("attach p99, round {}", round + 1);
            writeln!(
                formatter,
                "{what:<32} {:>11} {:>11} {ratio:>7.2}",
                ms(idle),
                ms(hostile)
            )?;
        }
        self.costs(formatter)
    }
}

/// Sum of all samples of a metric whose line begins so.
pub fn sum_of(metrics: &str, begin: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.starts_with(begin));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}
