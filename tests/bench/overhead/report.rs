//! What came out, as a table. Ratios are to the turns with tracing off of the same run.

use std::fmt;
use std::time::Duration;

use super::micro::{Micro, SPANS};
use super::{COLLECTORS, Collector, Sizes, Turn};

/// The figures of a run.
pub struct Report {
    /// How large it was.
    pub sizes: Sizes,
    /// Spans alone.
    pub micro: Micro,
    /// All turns.
    pub turns: Vec<(Collector, Turn)>,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

impl Report {
    fn of(&self, collector: Collector) -> impl Iterator<Item = &Turn> {
        let mine = self.turns.iter().filter(move |(of, _)| *of == collector);
        mine.map(|(_, turn)| turn)
    }

    /// One row: the mean over the rounds for each kind, and its ratio to that with tracing off.
    fn row(
        &self,
        formatter: &mut fmt::Formatter<'_>,
        what: &str,
        digits: usize,
        value: impl Fn(&Turn) -> f64,
    ) -> fmt::Result {
        let means = COLLECTORS.map(|collector| mean(self.of(collector).map(&value)));
        write!(formatter, "{what:<36}")?;
        for (index, mean) in means.iter().enumerate() {
            let ratio = if index == 0 || means[0] == 0.0 {
                String::new()
            } else {
                format!("({:.2})", mean / means[0])
            };
            write!(formatter, " {mean:>9.digits$} {ratio:>7}")?;
        }
        writeln!(formatter)
    }

    /// The value at a percentile of all rounds, as a row.
    fn percentile(&self, formatter: &mut fmt::Formatter<'_>, percent: usize) -> fmt::Result {
        let at = |collector: Collector| {
            let mut all: Vec<Duration> = self.of(collector).flat_map(|turn| turn.paced.clone()).collect();
            all.sort();
            let index = (all.len() * percent / 100).min(all.len().saturating_sub(1));
            all.get(index).copied().unwrap_or_default()
        };
        write!(formatter, "{:<36}", format!("at the even pace: p{percent}, ms"))?;
        let off = at(Collector::Off);
        for collector in COLLECTORS {
            let time = at(collector);
            let ratio = if collector == Collector::Off {
                String::new()
            } else {
                format!("({:.2})", time.as_secs_f64() / off.as_secs_f64())
            };
            write!(formatter, " {:>9.2} {ratio:>7}", ms(time))?;
        }
        writeln!(formatter)
    }

    /// CPU time at the even pace beyond that with tracing off, as a share of one core.
    fn overhead(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |turn: &Turn| 100.0 * turn.paced_cpu.as_secs_f64() / turn.paced_took.as_secs_f64();
        self.row(formatter, "at the even pace: CPU, % of a core", 2, share)?;
        let off = mean(self.of(Collector::Off).map(share));
        write!(formatter, "{:<36}", "  more than with tracing off (< 2)")?;
        for collector in COLLECTORS {
            let more = mean(self.of(collector).map(share)) - off;
            write!(formatter, " {more:>9.2} {:>7}", "")?;
        }
        writeln!(formatter)
    }

    /// What comes after the columns: whether spans arrived again, and spans without an operator.
    fn alone(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recovered = self.of(Collector::Holds).filter_map(|turn| turn.recovered);
        let (back, all) = recovered.fold((0, 0), |(back, all), recovered| {
            (back + usize::from(recovered), all + 1)
        });
        writeln!(
            formatter,
            "spans arrive again after the collector came back: {back} of {all} times"
        )?;
        let Micro {
            disabled,
            enabled,
            resident: [full, all],
        } = self.micro;
        writeln!(formatter, "one attempt of 5 spans, tracing off: {disabled:?} (< 1 us)")?;
        writeln!(
            formatter,
            "one attempt of 5 spans, collector answers nothing: {enabled:?}"
        )?;
        writeln!(
            formatter,
            "RSS of a process with {} and {SPANS} spans that nobody takes: {:.1} and {:.1} MiB",
            SPANS / 10,
            full as f64 / 1024.0,
            all as f64 / 1024.0
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sizes {
            rounds,
            count,
            rate,
            volumes,
        } = self.sizes;
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
        writeln!(
            formatter,
            "{rounds} rounds of {count} attaches at {rate} a second and a burst of {volumes}; {cores} cores for all; in \
             parentheses the ratio to tracing off"
        )?;
        write!(formatter, "{:<36}", "")?;
        for name in ["off", "on", "collector holds", "collector gone"] {
            write!(formatter, " {name:>17}")?;
        }
        writeln!(formatter)?;
        self.row(formatter, "burst: attaches a second", 0, |turn| turn.rate)?;
        let volumes = volumes as f64;
        self.row(formatter, "attach, detach and release: CPU, ms", 2, |turn| {
            ms(turn.cycle_cpu) / volumes
        })?;
        for percent in [50, 90, 99] {
            self.percentile(formatter, percent)?;
        }
        let paced = |turn: &Turn| turn.paced.len() as f64 / turn.paced_took.as_secs_f64();
        self.row(formatter, "at the even pace: attaches a second", 0, paced)?;
        self.overhead(formatter)?;
        self.row(formatter, "RSS, all attached, MiB", 1, |turn| {
            turn.memory.now as f64 / 1024.0
        })?;
        self.row(formatter, "RSS, peak, MiB", 1, |turn| turn.memory.peak as f64 / 1024.0)?;
        for (index, what) in ["spans exported", "spans dropped, queue full", "spans not taken"]
            .into_iter()
            .enumerate()
        {
            self.row(formatter, what, 0, |turn| turn.spans[index] as f64)?;
        }
        self.alone(formatter)
    }
}
