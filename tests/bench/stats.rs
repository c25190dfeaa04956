//! Small arithmetic that all scenes share.

use std::time::Duration;

/// The value at a percentile of times.
pub fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

/// The median of the rounds; of two the larger one.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The part of a time that each of so many had.
pub fn each_of(time: Duration, count: usize) -> Duration {
    time / u32::try_from(count).unwrap_or(u32::MAX)
}

pub fn mib(kibibytes: u64) -> f64 {
    kibibytes as f64 / 1024.0
}

/// Sum of all samples of a metric whose line begins so.
pub fn sum_of(metrics: &str, begin: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.starts_with(begin));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}
