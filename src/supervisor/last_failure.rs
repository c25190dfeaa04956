//! Which failure is shown as the last one. Pure.

use jiff::Timestamp;

/// The later one of what failed last here and what is known: another replica may have led since. Its clock may have been ahead, and what
/// is of a time to come must not hide what fails from now on.
pub(super) fn later<F>(own: Option<F>, known: Option<F>, time: impl Fn(&F) -> Timestamp, now: Timestamp) -> Option<F> {
    let Some(own) = own else { return known };
    let is_later = |known: &F| time(known) > time(&own) && time(known) <= now;
    known.filter(is_later).or(Some(own))
}
