//! A budget that fills up over time. Pure: time is given.

use std::time::Instant;

/// So much now, and so much more in each second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    left: f64,
    per_second: f64,
    most: f64,
    at: Instant,
}

impl TokenBucket {
    /// A full budget of `most`.
    pub fn new(per_second: f64, most: f64, at: Instant) -> Self {
        Self {
            left: most,
            per_second,
            most,
            at,
        }
    }

    /// Takes one, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * self.per_second).min(self.most);
        self.at = now;
        let enough = self.left >= 1.0;
        if enough {
            self.left -= 1.0;
        }
        enough
    }
}
