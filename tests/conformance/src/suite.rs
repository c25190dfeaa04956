//! Plays scenarios and notes how they went.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{FutureExt as _, StreamExt as _, stream};

use crate::command::Template;
use crate::env::Env;
use crate::lane::Lane;
use crate::scenario::{Level, Outcome, Scenario, Setup, Stop};
use crate::support::Result;
use crate::test::Test;

const LIMIT: Duration = Duration::from_mins(3);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is as demanded.
    Passed,
    /// Something is not, in a few words.
    Failed(String),
    /// The attacher does not offer it, in a few words.
    NotSupported(String),
    /// It is not as demanded, and that is known of this one.
    KnownFailure(String),
}

/// A line of the report.
#[derive(Clone, Debug)]
pub struct Row {
    pub group: &'static str,
    pub id: String,
    pub title: String,
    pub level: Level,
    pub verdict: Verdict,
    pub took: Duration,
}

/// A way to run an attacher.
pub struct Mode {
    pub name: String,
    /// Its place among the attachers of this run.
    pub number: usize,
    pub template: Template,
    /// Whether this is the Go sidecar, whose failures are known.
    pub peer: bool,
    /// If it must offer the extensions too: all but those with these ids.
    pub left_out: Option<&'static [&'static str]>,
}

impl Mode {
    /// A part of object names which no other mode has.
    fn short(&self) -> String {
        let letters = self.name.chars().filter(char::is_ascii_alphanumeric).take(2);
        format!("{}{}", letters.collect::<String>().to_lowercase(), self.number)
    }
}

/// Plays the setups of one lane one after another.
pub async fn run_lane(lane: &Lane, setups: Vec<Setup>, mode: &Mode) -> Vec<Row> {
    let mut rows = Vec::new();
    for setup in setups {
        let started = Instant::now();
        let played = run_setup(lane, &setup, mode).await;
        let failed = played
            .iter()
            .filter(|row| matches!(row.verdict, Verdict::Failed(_)))
            .count();
        let (count, seconds) = (played.len(), started.elapsed().as_secs_f32());
        eprintln!(
            "{} {}: {count} scenarios, {failed} failed, {seconds:.1} s",
            mode.name, setup.name
        );
        rows.extend(played);
    }
    rows
}

async fn run_setup(lane: &Lane, setup: &Setup, mode: &Mode) -> Vec<Row> {
    let prefix = format!("{}-{}", setup.name, mode.short());
    let env = match prepare(lane, setup, mode, &prefix).await {
        Ok(env) => env,
        Err(why) => {
            eprintln!("{} {}: {why}", mode.name, setup.name);
            let why = why.lines().next().unwrap_or_default().to_owned();
            let failed = |scenario: &Scenario| row(scenario, Verdict::Failed(why.clone()), Duration::ZERO);
            return setup.scenarios.iter().map(failed).collect();
        }
    };
    let plays = setup.scenarios.iter().enumerate().map(|(number, scenario)| {
        let test = Test::new(Arc::clone(&env), &format!("{prefix}-{number:03}"));
        play(scenario, test, mode.peer)
    });
    let rows = at_a_time(setup.parallel, plays).await;
    if let Err(error) = env.attacher.stop().await {
        eprintln!("{} {}: cannot stop the attacher: {error}", mode.name, setup.name);
    }
    rows
}

/// So many at a time; what came of them in the order in which they are given. One that takes long keeps no other from starting.
async fn at_a_time<F: Future>(count: usize, all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let numbered = all
        .enumerate()
        .map(|(number, one)| one.map(move |outcome| (number, outcome)));
    let mut outcomes: Vec<_> = stream::iter(numbered).buffer_unordered(count).collect().await;
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

async fn prepare(lane: &Lane, setup: &Setup, mode: &Mode, prefix: &str) -> std::result::Result<Arc<Env>, String> {
    let env: Result<_> = Env::start(lane, setup, &mode.short(), &mode.template).await;
    let env = env.map_err(|error| error.to_string())?;
    env.ready(&format!("{prefix}-ready"))
        .await
        .map_err(|stop| stop.to_string())?;
    Ok(env)
}

async fn play(scenario: &Scenario, test: Test, peer: bool) -> Row {
    let started = Instant::now();
    let whole = async {
        (scenario.run)(test.clone()).await?;
        test.tear_down().await
    };
    let outcome = tokio::time::timeout(LIMIT, whole).await;
    let outcome = outcome.unwrap_or_else(|_| Err(Stop::Failed(format!("not over after {LIMIT:?}"))));
    let took = started.elapsed();
    if outcome.is_err() {
        clean(&test).await;
    }
    row(scenario, verdict(scenario, outcome, peer), took)
}

/// What cannot be removed disturbs nobody: no other scenario uses these names.
async fn clean(test: &Test) {
    if let Err(stop) = test.clear_away().await {
        eprintln!("{}: cannot clear away: {stop}", test.id);
    }
}

/// Only an extension can be "not supported".
fn verdict(scenario: &Scenario, outcome: Outcome, peer: bool) -> Verdict {
    let known = scenario.peer_fails.filter(|_| peer);
    match outcome {
        Ok(()) => known.map_or(Verdict::Passed, |why| {
            Verdict::Failed(format!(
                "it passed, and a failure is known ({why}): that is out of date"
            ))
        }),
        Err(Stop::NotSupported(why)) if scenario.criterion.is_some() => Verdict::NotSupported(one_line(&why)),
        Err(stop) => match known {
            Some(why) => Verdict::KnownFailure(one_line(&format!("{why}: {stop}"))),
            None => Verdict::Failed(one_line(&stop.to_string())),
        },
    }
}

fn row(scenario: &Scenario, verdict: Verdict, took: Duration) -> Row {
    Row {
        group: scenario.group,
        id: scenario.id.clone(),
        title: scenario.title.clone(),
        level: scenario.level,
        verdict,
        took,
    }
}

fn one_line(text: &str) -> String {
    const LONGEST: usize = 400;
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn one_that_takes_long_keeps_no_other_from_starting_and_stays_at_its_place() {
        let last_began = Notify::new();
        let all = (0..5).map(|number| {
            let last_began = &last_began;
            async move {
                match number {
                    0 => last_began.notified().await,
                    4 => last_began.notify_one(),
                    _ => {}
                }
                number
            }
        });
        let outcomes = tokio::time::timeout(Duration::from_secs(10), at_a_time(2, all)).await;
        assert_eq!(outcomes.ok(), Some(vec![0, 1, 2, 3, 4]));
    }
}
