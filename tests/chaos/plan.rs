//! Which faults strike when, all of it from one seed.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

/// A kind of fault; [`KINDS`] has its name and what it does. Those up to `Untrue` strike replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Stop,
    Kill,
    Term,
    Hole,
    Swallow,
    Reset,
    Slow,
    Untrue,
    Away,
    Drop,
    Fail,
    FailAfter,
    Hang,
    Late,
    Lag,
    Capability,
    Replaced,
    Denied,
    Secret,
    Patch,
    Namespace,
    Recreate,
    Lease,
    Api,
    Etcd,
    Restore,
}

/// All kinds, by the names that `CHAOS_FAULTS` takes. The number is how often a kind is drawn.
pub const KINDS: [(Kind, &str, u32, &str); 26] = [
    (
        Kind::Stop,
        "stop",
        6,
        "a replica stands still (SIGSTOP) for 0.5 to 20 s",
    ),
    (
        Kind::Kill,
        "kill",
        3,
        "a replica is killed (SIGKILL) and started again, under its name or another",
    ),
    (
        Kind::Term,
        "term",
        2,
        "a replica is terminated (SIGTERM), and another one started",
    ),
    (
        Kind::Hole,
        "hole",
        2,
        "what a replica and the API server say to each other is held back, and arrives late",
    ),
    (
        Kind::Swallow,
        "swallow",
        2,
        "the connections of a replica to the API server are dead without a FIN; new ones work",
    ),
    (
        Kind::Reset,
        "reset",
        2,
        "the connections of a replica to the API server are reset, again and again",
    ),
    (
        Kind::Slow,
        "slow",
        1,
        "everything between a replica and the API server takes long",
    ),
    (
        Kind::Untrue,
        "untrue",
        6,
        "a replica gets answers that are not true, from a proxy",
    ),
    (Kind::Away, "away", 2, "a driver goes away and comes back"),
    (
        Kind::Drop,
        "drop",
        1,
        "a driver closes connections before or after its work",
    ),
    (Kind::Fail, "fail", 2, "calls fail, and nothing is done"),
    (Kind::FailAfter, "fail-after", 2, "calls fail after their work"),
    (Kind::Hang, "hang", 1, "calls are not answered, and nothing is done"),
    (
        Kind::Late,
        "late",
        1,
        "calls are not answered; the work is done when the caller has given up",
    ),
    (Kind::Lag, "lag", 2, "calls take seconds"),
    (
        Kind::Capability,
        "capability",
        1,
        "a driver comes back without PUBLISH_UNPUBLISH_VOLUME or CREATE_DELETE_VOLUME, and with it again",
    ),
    (
        Kind::Replaced,
        "replaced",
        2,
        "a driver hangs with its connections open, and another process takes its socket",
    ),
    (
        Kind::Denied,
        "denied",
        1,
        "an admission policy denies what is written to VolumeAttachments, PersistentVolumeClaims or PersistentVolumes, or takes away a note",
    ),
    (
        Kind::Secret,
        "secret",
        2,
        "the publish Secret of a driver is deleted, or has another value, and comes back",
    ),
    (
        Kind::Patch,
        "patch",
        3,
        "a setting of an AttacherConfig is changed and changed back",
    ),
    (
        Kind::Namespace,
        "namespace",
        1,
        "the Leases of a driver are moved to another namespace and back",
    ),
    (
        Kind::Recreate,
        "recreate",
        1,
        "an AttacherConfig is deleted and made again",
    ),
    (Kind::Lease, "lease", 1, "the Leases of a driver are deleted"),
    (Kind::Api, "api", 1, "the API server is killed and started again"),
    (Kind::Etcd, "etcd", 1, "etcd is killed and started again"),
    (
        Kind::Restore,
        "restore",
        0,
        "etcd goes back to a copy; a round of its own, the second and then each twelfth",
    ),
];

impl Kind {
    fn row(self) -> &'static (Kind, &'static str, u32, &'static str) {
        KINDS.iter().find(|row| row.0 == self).unwrap_or(&KINDS[0])
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The kinds that a list such as `stop,kill` names, or the name that there is none of. An empty list names all.
    pub fn read(list: &str) -> Result<Vec<Self>, String> {
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        let kinds: Result<Vec<_>, _> = names
            .map(|name| {
                KINDS
                    .iter()
                    .find(|row| row.1 == name)
                    .map(|row| row.0)
                    .ok_or_else(|| name.to_owned())
            })
            .collect();
        let kinds = kinds?;
        Ok(if kinds.is_empty() {
            KINDS.map(|row| row.0).to_vec()
        } else {
            kinds
        })
    }
}

/// One fault of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub kind: Kind,
    /// From the beginning of the round.
    pub at: Duration,
    pub lasts: Duration,
    /// Whom it strikes, if it is a fault of replicas.
    pub replica: usize,
    /// Whom it strikes, if it is a fault of drivers.
    pub driver: usize,
    /// What is left to choose; see [`super::faults`].
    pub choice: u64,
}

impl fmt::Display for Planned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            at,
            lasts,
            replica,
            driver,
            choice,
        } = self;
        let whom = match kind {
            Kind::Api | Kind::Etcd | Kind::Restore | Kind::Denied => String::new(),
            _ if *kind > Kind::Untrue => format!(" driver {driver}"),
            _ if choice % 4 != 0 => format!(" who works for driver {driver}"),
            _ => format!(" replica {replica}"),
        };
        let (at, lasts) = (at.as_secs_f64(), lasts.as_secs_f64());
        write!(
            formatter,
            "{at:6.2} s {}{whom} for {lasts:.2} s (choice {choice})",
            kind.name()
        )
    }
}

/// The faults of one round. After it everything is healed and must come to rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    pub number: usize,
    pub faults: Vec<Planned>,
}

impl Round {
    /// Draws a round: the same for the same seed and number.
    pub fn draw(seed: u64, number: usize, kinds: &[Kind], replicas: usize, drivers: usize) -> Self {
        let mut random = Rng::with_seed(seed ^ (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        if kinds.contains(&Kind::Restore) && (number % 12 == 1 || kinds == [Kind::Restore]) {
            let at = Duration::from_millis(random.u64(2000..6000));
            let faults = vec![Planned {
                kind: Kind::Restore,
                at,
                lasts: Duration::from_millis(random.u64(500..3000)),
                replica: 0,
                driver: 0,
                choice: random.u64(..),
            }];
            return Self { number, faults };
        }
        let weighted: Vec<Kind> = kinds
            .iter()
            .flat_map(|kind| std::iter::repeat_n(*kind, kind.row().2 as usize))
            .collect();
        let count = if weighted.is_empty() { 0 } else { random.usize(4..=9) };
        let mut faults: Vec<Planned> = (0..count)
            .map(|_| {
                let kind = weighted[random.usize(..weighted.len())];
                Planned {
                    kind,
                    at: Duration::from_millis(random.u64(..8000)),
                    lasts: lasts(kind, &mut random),
                    replica: random.usize(..replicas.max(1)),
                    driver: random.usize(..drivers.max(1)),
                    choice: random.u64(..1 << 32),
                }
            })
            .collect();
        faults.sort_by_key(|fault| fault.at);
        Self { number, faults }
    }
}

/// A standstill lasts 0.5 to 20 s, most of them as long as a Lease does or a little longer.
fn lasts(kind: Kind, random: &mut Rng) -> Duration {
    let milliseconds = match kind {
        Kind::Stop if random.u8(..5) == 0 => 8000..20_000,
        Kind::Stop => 500..8000,
        Kind::Api | Kind::Etcd => 500..4000,
        Kind::Kill | Kind::Term | Kind::Lease => 0..2000,
        _ => 1000..8000,
    };
    Duration::from_millis(random.u64(milliseconds))
}
