//! When everything was listed.

/// When each kind was listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    pub(super) attachments: Listed,
    pub(super) volumes: Listed,
    pub(super) nodes: Listed,
    /// Numbers, in their order: lists that begin, lists that end, watches that break, rounds that are asked for.
    last: u64,
    /// When the newest round was asked for.
    asked: u64,
    /// The newest round that a list has begun in.
    pub(super) begun: u64,
}

/// When one kind was listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// In which round it was last listed completely; none before the first time.
    pub(super) round: Option<u64>,
    /// Whether a list of it was ever answered, be it in part.
    answered: bool,
    /// Whether an error came in the place of what its watch tells, and nothing since.
    unwatched: bool,
    /// When the list began that comes in or came in last.
    coming_in: u64,
    /// When the last complete list began.
    complete: u64,
    /// When its watch broke last.
    broke: u64,
    /// From when on a list of another kind shows all that belongs to what is known of this one: from the end of its own list, when
    /// that followed a watch that broke; from when the round was asked for, in which it was listed with the others; and greater than
    /// all numbers before a list that follows a break is complete.
    known_from: u64,
}

/// Of which kinds the cache is only as old as their watch is slow. A copy of another kind may be of any age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// PersistentVolumes.
    pub volumes: bool,
    /// CSINodes.
    pub nodes: bool,
}

impl Watched {
    /// Whether that is so for all of them.
    pub fn all(self) -> bool {
        self.volumes && self.nodes
    }
}

/// Picks one kind.
pub(super) type Slot = fn(&mut Synced) -> &mut Listed;

impl Synced {
    /// Whether all kinds were listed in this round or a later one.
    pub(super) fn since(self, round: u64) -> bool {
        [self.attachments, self.volumes, self.nodes]
            .iter()
            .all(|listed| listed.round >= Some(round))
    }

    /// Whether the API server has answered lists of all kinds, be it in part.
    pub(super) fn all_answered(self) -> bool {
        [self.attachments, self.volumes, self.nodes]
            .iter()
            .all(|listed| listed.answered)
    }

    /// The first part of a list came in.
    pub(super) fn answered(&mut self, kind: Slot) {
        kind(self).answered = true;
    }

    /// The number of this moment: a list that begins later has a greater one.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A round of lists is asked for.
    pub(super) fn ask(&mut self) {
        self.asked = self.next();
    }

    /// A list begins that is made in a round.
    pub(super) fn begin(&mut self, kind: Slot, round: u64) {
        self.begun = self.begun.max(round);
        let (now, asked) = (self.next(), self.asked);
        let listed = kind(self);
        listed.coming_in = now;
        let follows_a_break = listed.round >= Some(round) || listed.broke > asked;
        listed.known_from = if follows_a_break { u64::MAX } else { asked };
    }

    /// The watch of a kind broke.
    pub(super) fn broke(&mut self, kind: Slot) {
        let now = self.next();
        let listed = kind(self);
        (listed.broke, listed.known_from) = (now, u64::MAX);
    }

    /// It is complete.
    pub(super) fn finish(&mut self, kind: Slot, round: u64) {
        let now = self.next();
        let listed = kind(self);
        (listed.round, listed.complete) = (Some(round), listed.coming_in);
        listed.known_from = listed.known_from.min(now);
    }

    /// The watch of a kind is at work, or an error came in the place of what it tells.
    pub(super) fn watches(&mut self, kind: Slot, at_work: bool) {
        kind(self).unwatched = !at_work;
    }

    /// Whether the watches of PersistentVolumes and of CSINodes are at work.
    pub(super) fn watched(self) -> Watched {
        Watched {
            volumes: !self.volumes.unwatched,
            nodes: !self.nodes.unwatched,
        }
    }

    /// Whether a complete list of VolumeAttachments began after this moment, and their watch has not broken since.
    pub(super) fn attachments_listed_after(self, moment: u64) -> bool {
        self.attachments.complete > moment.max(self.attachments.broke)
    }

    /// Whether VolumeAttachments were listed since the watch of PersistentVolumes broke last.
    pub(super) fn attachments_are_as_new(self) -> bool {
        self.volumes.known_from <= self.attachments.complete
    }
}
