//! When the kinds of a sink were listed.

/// When each kind was listed.
#[derive(Clone, Debug)]
pub(super) struct Synced {
    kinds: Vec<(&'static str, Listed)>,
    /// Numbers, in their order: lists that begin, lists that end, watches that break, rounds that are asked for.
    last: u64,
    /// When the newest round was asked for.
    asked: u64,
    /// The newest round that a list has begun in.
    pub begun: u64,
}

/// When one kind was listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// In which round it was last listed completely; none before the first time.
    pub round: Option<u64>,
    /// Whether a list of it was ever answered, be it in part.
    answered: bool,
    /// Whether an error came in the place of what its watch tells, and nothing since.
    pub unwatched: bool,
    /// When the list began that comes in or came in last.
    coming_in: u64,
    /// When the last complete list began.
    pub complete: u64,
    /// When its watch broke last.
    pub broke: u64,
    /// From when on a list of another kind shows all that belongs to what is known of this one: from the end of its own list, when
    /// that followed a watch that broke; from when the round was asked for, in which it was listed with the others; and greater than
    /// all numbers before a list that follows a break is complete.
    pub known_from: u64,
}

impl Synced {
    /// Of these kinds, by their plural names.
    pub fn new(kinds: &[&'static str]) -> Self {
        Self {
            kinds: kinds.iter().map(|kind| (*kind, Listed::default())).collect(),
            last: 0,
            asked: 0,
            begun: 0,
        }
    }

    /// What is known of a kind; nothing of one that the sink does not have.
    pub fn of(&self, kind: &str) -> Listed {
        let found = self.kinds.iter().find(|(name, _)| *name == kind);
        found.map_or_else(Listed::default, |(_, listed)| *listed)
    }

    fn change(&mut self, kind: &str, change: impl FnOnce(&mut Listed)) {
        if let Some((_, listed)) = self.kinds.iter_mut().find(|(name, _)| *name == kind) {
            change(listed);
        }
    }

    fn all(&self, is_so: impl Fn(&Listed) -> bool) -> bool {
        self.kinds.iter().all(|(_, listed)| is_so(listed))
    }

    /// Whether all kinds were listed in this round or a later one.
    pub fn since(&self, round: u64) -> bool {
        self.all(|listed| listed.round >= Some(round))
    }

    /// Whether the API server has answered lists of all kinds, be it in part.
    pub fn all_answered(&self) -> bool {
        self.all(|listed| listed.answered)
    }

    /// The first part of a list came in.
    pub fn answered(&mut self, kind: &str) {
        self.change(kind, |listed| listed.answered = true);
    }

    /// The number of this moment: a list that begins later has a greater one.
    pub fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A round of lists is asked for.
    pub fn ask(&mut self) {
        self.asked = self.next();
    }

    /// A list begins that is made in a round.
    pub fn begin(&mut self, kind: &str, round: u64) {
        self.begun = self.begun.max(round);
        let (now, asked) = (self.next(), self.asked);
        self.change(kind, |listed| {
            listed.coming_in = now;
            let follows_a_break = listed.round >= Some(round) || listed.broke > asked;
            listed.known_from = if follows_a_break { u64::MAX } else { asked };
        });
    }

    /// The watch of a kind broke.
    pub fn broke(&mut self, kind: &str) {
        let now = self.next();
        self.change(kind, |listed| (listed.broke, listed.known_from) = (now, u64::MAX));
    }

    /// It is complete.
    pub fn finish(&mut self, kind: &str, round: u64) {
        let now = self.next();
        self.change(kind, |listed| {
            (listed.round, listed.complete) = (Some(round), listed.coming_in);
            listed.known_from = listed.known_from.min(now);
        });
    }

    /// The watch of a kind is at work, or an error came in the place of what it tells.
    pub fn watches(&mut self, kind: &str, at_work: bool) {
        self.change(kind, |listed| listed.unwatched = !at_work);
    }
}
