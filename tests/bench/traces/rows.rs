//! The rows of the turns. What has no target explains what has one.

use std::time::Duration;

use super::{Collector, Sizes, Turn};
use crate::spans::{self, Micro};
use crate::stats::{median, mib, ms, percentile};
use crate::table::{Row, Topic};

/// All turns of a run.
struct Turns<'t>(&'t [(Collector, Turn)]);

impl Turns<'_> {
    /// The median over the rounds.
    fn of(&self, collector: Collector, value: impl Fn(&Turn) -> f64) -> f64 {
        let mine = self.0.iter().filter(|(of, _)| *of == collector);
        median(mine.map(|(_, turn)| value(turn)))
    }

    /// The 99th percentile of all attaches at the even pace, in ms.
    fn latency(&self, collector: Collector) -> f64 {
        let mine = self.0.iter().filter(|(of, _)| *of == collector);
        let all: Vec<Duration> = mine.flat_map(|(_, turn)| &turn.paced).copied().collect();
        ms(percentile(&all, 99))
    }
}

pub fn rows(sizes: Sizes, micro: Micro, turns: &[(Collector, Turn)]) -> Vec<Row> {
    let turns = Turns(turns);
    let burned = turns.of(Collector::Burns, |turn| turn.rate);
    let share = turns.of(Collector::Takes, |turn| turn.collector_share);
    let rate = turns.of(Collector::Takes, |turn| turn.rate);
    let mut rows = vec![
        Row::new(Topic::Rate, "rate with every attach traced", rate, "/s")
            .against("tracing off, the collector's CPU burned", burned)
            .ratio_at_least(0.95)
            .note(format!("collector took {share:.2} cores")),
    ];
    for (what, collector) in [
        ("every attach traced", Collector::Takes),
        ("collector holds connections", Collector::Holds),
        ("collector gone", Collector::Gone),
    ] {
        rows.extend(against_off(&turns, sizes, what, collector));
    }
    let back = turns.0.iter().filter(|(_, turn)| turn.recovered == Some(true)).count();
    let recovered = "turns after which a collector that came back got spans";
    rows.push(Row::new(Topic::Requests, recovered, back as f64, "").exactly(sizes.rounds as f64));
    rows.extend(alone(micro));
    rows
}

/// One kind of turn against those with tracing off.
fn against_off(turns: &Turns<'_>, sizes: Sizes, what: &str, collector: Collector) -> Vec<Row> {
    let row = |topic, name: String, unit: &str, value: &dyn Fn(Collector) -> f64| {
        Row::new(topic, format!("{name}, {what}"), value(collector), unit).against("tracing off", value(Collector::Off))
    };
    let cycle = |collector| turns.of(collector, |turn| ms(turn.cycle_cpu)) / sizes.volumes as f64;
    let cpu = row(Topic::Cpu, "CPU for a cycle".to_owned(), "ms", &cycle);
    let share = |collector| 100.0 * turns.of(collector, |turn| turn.paced_share);
    let paced = format!(
        "CPU at {} attaches a second, {what}: more than with tracing off",
        sizes.rate
    );
    let more = share(collector) - share(Collector::Off);
    let resident = |collector| turns.of(collector, |turn| mib(turn.memory.now));
    let lost = turns.of(collector, |turn| turn.lost as f64);
    vec![
        if collector == Collector::Takes {
            cpu.ratio_at_most(1.15)
        } else {
            cpu
        },
        Row::new(Topic::Cpu, paced, more, "% of a core").at_most(2.0),
        row(Topic::Latency, "p99 of an attach".to_owned(), "ms", &|collector| {
            turns.latency(collector)
        }),
        row(
            Topic::Memory,
            format!("RSS, {} attached", sizes.volumes),
            "MiB",
            &resident,
        )
        .note(format!("{lost:.0} spans lost")),
    ]
}

/// Spans without an operator.
fn alone(micro: Micro) -> [Row; 3] {
    let [tenth, all] = micro.resident.map(mib);
    let nanoseconds = |time: Duration| time.as_secs_f64() * 1e9;
    let attempt = |what: &str, took: Duration| {
        Row::new(
            Topic::Cpu,
            format!("an attempt of 5 spans, {what}"),
            nanoseconds(took),
            "ns",
        )
    };
    [
        attempt("tracing off", micro.disabled).at_most(1000.0),
        attempt("collector answers nothing", micro.enabled),
        Row::new(
            Topic::Memory,
            format!("RSS with {} spans that nobody takes", spans::SPANS),
            all,
            "MiB",
        )
        .against("a tenth of them", tenth)
        .ratio_at_most(1.1),
    ]
}
