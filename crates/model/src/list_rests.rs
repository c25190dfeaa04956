//! How long is rested while what was listed does not tell enough. Pure.

use std::time::Duration;

/// The first of such rests.
const INITIAL_REST: Duration = Duration::from_millis(200);
/// The longest one. Lists that are complete wake nothing, and thousands may wait for one.
pub(crate) const MAX_REST: Duration = Duration::from_secs(10);

/// The rests in a row of one key that waits for lists: each is twice as long as the one before, up to 10 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListRests(u32);

impl ListRests {
    /// The next rest.
    pub fn next_rest(&mut self) -> Duration {
        let rest = INITIAL_REST.saturating_mul(1 << self.0.min(10));
        self.0 = self.0.saturating_add(1);
        rest.min(MAX_REST)
    }

    /// Something else than lists is waited for, or nothing.
    pub fn end(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_grow_and_end_with_the_wait() {
        let mut rests = ListRests::default();
        let of = |rests: &mut ListRests| rests.next_rest().as_millis();
        let all: Vec<_> = (0..8).map(|_| of(&mut rests)).collect();
        assert_eq!(all, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        rests.end();
        assert_eq!(of(&mut rests), 200);
        assert_eq!(ListRests(u32::MAX).next_rest(), MAX_REST);
    }
}
