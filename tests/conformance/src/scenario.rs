//! What a scenario is, and how it can end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use csi_mock_driver::MockDriverBuilder;

use crate::support;
use crate::test::Test;

#[derive(Debug)]
pub enum Stop {
    /// What was demanded is not so.
    Failed(String),
    /// The attacher does not offer this; the scenario's criterion says how that is told from a failure.
    NotSupported(String),
}

pub type Outcome<T = ()> = Result<T, Stop>;

impl From<support::Error> for Stop {
    fn from(error: support::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<kube::Error> for Stop {
    fn from(error: kube::Error) -> Self {
        let text = match error {
            kube::Error::Api(status) => status.message,
            other => other.to_string(),
        };
        Self::Failed(format!("the API server refused what the scenario asked for: {text}"))
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) | Self::NotSupported(why) => f.write_str(why),
        }
    }
}

/// Ends the scenario as failed unless the condition holds.
pub fn demand(condition: bool, why: impl FnOnce() -> String) -> Outcome {
    if condition { Ok(()) } else { Err(Stop::Failed(why())) }
}

/// Ends the scenario as failed unless both are equal.
pub fn same<T: PartialEq<U> + fmt::Debug, U: fmt::Debug>(what: &str, is: &T, wanted: &U) -> Outcome {
    demand(is == wanted, || format!("{what} is {is:?}, want {wanted:?}"))
}

/// Ends the scenario as not supported unless the condition holds: the criterion of an extension.
pub fn offered(condition: bool, why: impl FnOnce() -> String) -> Outcome {
    if condition {
        Ok(())
    } else {
        Err(Stop::NotSupported(why()))
    }
}

/// Turns a failure into "not supported": for what an attacher may leave out.
pub fn optional<T>(outcome: Outcome<T>, why: &str) -> Outcome<T> {
    outcome.map_err(|stop| match stop {
        Stop::Failed(_) | Stop::NotSupported(_) => Stop::NotSupported(why.to_owned()),
    })
}

type Run = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What depends on a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub enum Level {
    /// A volume is lost, corrupted or used by two nodes, or what belongs to others is destroyed.
    Safety,
    /// Kubernetes, CSI drivers or users rely on it: a volume is stuck or an error is hidden without it.
    Core,
    /// Without it the attacher costs more calls, writes or time than it has to.
    Recommended,
    /// Only some attachers offer it. A criterion tells "not supported" from a failure.
    Extension,
}

impl Level {
    /// All levels, the one that matters most first.
    pub const ALL: [Self; 4] = [Self::Safety, Self::Core, Self::Recommended, Self::Extension];

    pub fn name(self) -> &'static str {
        match self {
            Self::Safety => "SAFETY",
            Self::Core => "CORE",
            Self::Recommended => "RECOMMENDED",
            Self::Extension => "EXTENSION",
        }
    }
}

pub struct Scenario {
    /// The group it is listed under, the first part of the id.
    pub group: &'static str,
    /// `group/name`: stable, so that results of different versions can be compared. An id is never used again.
    pub id: String,
    pub title: String,
    pub level: Level,
    /// For an extension: what tells an attacher that does not offer it from one that fails.
    pub criterion: Option<&'static str>,
    /// Why the Go sidecar does not do so, with a reference; then a failure of it is no surprise, and its success is one.
    pub peer_fails: Option<&'static str>,
    pub run: Box<dyn Fn(Test) -> Run + Send + Sync>,
}

/// Makes the scenarios of one group.
pub struct Group {
    name: &'static str,
    scenarios: Vec<Scenario>,
}

impl Group {
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            scenarios: Vec::new(),
        }
    }

    /// What the next scenario demands, in one line.
    pub fn demands(self, title: impl Into<String>) -> Demand {
        Demand {
            group: self,
            title: title.into(),
        }
    }

    /// Says of the last scenario that the Go sidecar fails there, and why that is no wrong demand.
    #[must_use]
    pub fn peer_fails(mut self, reference: &'static str) -> Self {
        if let Some(last) = self.scenarios.last_mut() {
            last.peer_fails = Some(reference);
        }
        self
    }

    pub fn done(self) -> Vec<Scenario> {
        self.scenarios
    }
}

/// What one more scenario of a group demands.
pub struct Demand {
    group: Group,
    title: String,
}

impl Demand {
    pub fn safety<F, R>(self, id: impl AsRef<str>, run: F) -> Group
    where
        F: Fn(Test) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.add(id.as_ref(), (Level::Safety, None), run)
    }

    pub fn scenario<F, R>(self, id: impl AsRef<str>, run: F) -> Group
    where
        F: Fn(Test) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.add(id.as_ref(), (Level::Core, None), run)
    }

    pub fn recommended<F, R>(self, id: impl AsRef<str>, run: F) -> Group
    where
        F: Fn(Test) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.add(id.as_ref(), (Level::Recommended, None), run)
    }

    /// An attacher may leave it out; `criterion` says how that is told from a failure.
    pub fn unless(self, criterion: &'static str) -> Offer {
        Offer {
            demand: self,
            criterion,
        }
    }

    fn add<F, R>(self, id: &str, level: (Level, Option<&'static str>), run: F) -> Group
    where
        F: Fn(Test) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        let Self { mut group, title } = self;
        let (level, criterion) = level;
        group.scenarios.push(Scenario {
            group: group.name,
            id: format!("{}/{id}", group.name),
            title,
            level,
            criterion,
            peer_fails: None,
            run: Box::new(move |test| Box::pin(run(test))),
        });
        group
    }
}

/// What only some attachers offer.
pub struct Offer {
    demand: Demand,
    criterion: &'static str,
}

impl Offer {
    pub fn extension<F, R>(self, id: impl AsRef<str>, run: F) -> Group
    where
        F: Fn(Test) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        let level = (Level::Extension, Some(self.criterion));
        self.demand.add(id.as_ref(), level, run)
    }
}

/// First and longest pause after failures, where a setup does not say otherwise: short, so that scenarios are.
pub const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// A driver, an attacher for it, and the scenarios they play.
pub struct Setup {
    /// A short name, part of the names of all its objects.
    pub name: &'static str,
    /// The driver's name, where the scenarios need a particular one.
    pub driver_name: Option<&'static str>,
    pub driver: fn(MockDriverBuilder) -> MockDriverBuilder,
    /// First and longest pause after failures.
    pub retry: (Duration, Duration),
    /// Flags of the attacher besides those that all setups have.
    pub flags: Vec<String>,
    /// Whether a proxy is between the attacher and its API server, which misbehaves as the scenarios want.
    pub proxied: bool,
    pub parallel: usize,
    pub scenarios: Vec<Scenario>,
}

impl Setup {
    /// A driver under a name of its own, and an attacher without flags that plays so many scenarios at a time.
    pub fn new(
        name: &'static str,
        parallel: usize,
        scenarios: Vec<Scenario>,
        driver: fn(MockDriverBuilder) -> MockDriverBuilder,
    ) -> Self {
        Self {
            name,
            driver_name: None,
            driver,
            retry: RETRY,
            flags: Vec::new(),
            proxied: false,
            parallel,
            scenarios,
        }
    }
}
