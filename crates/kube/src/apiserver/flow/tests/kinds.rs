//! What the kinds of requests of one driver are to each other.

use super::*;

/// A webhook on PersistentVolumes that hangs holds up neither other kinds of the same driver nor those of others.
#[tokio::test(start_paused = true)]
async fn a_slow_kind_does_not_hold_up_the_others() {
    let (slots, driver, other) = (fixed(8), name("driver"), name("other"));
    let slow: Vec<_> = (0..6).map(|_| take(&slots, of_kind(&driver, VOLUME))).collect();
    let mut line: Vec<_> = (0..100).map(|_| wait(&slots, of_kind(&driver, VOLUME))).collect();
    // A quarter of the places is left, and the first of a kind has one anyway.
    let attachments: Vec<_> = (0..2).map(|_| take(&slots, of_kind(&driver, ATTACHMENT))).collect();
    let status = take(&slots, of_kind(&driver, STATUS));
    let others = take(&slots, of_kind(&other, VOLUME));
    let mut next = wait(&slots, of_kind(&driver, ATTACHMENT));
    drop((attachments, status, others));
    assert!(got(&mut next).is_some());
    assert!(line.iter_mut().all(|waiting| got(waiting).is_none()));
    drop(slow);
    let slow: Vec<_> = line.iter_mut().filter_map(got).collect();
    assert_eq!(slow.len(), 6);
}

/// Of the kinds of a driver the next place is for the one that has the fewest in flight: volumes are protected, claims and
/// results are written at the same pace.
#[tokio::test(start_paused = true)]
async fn kinds_take_turns() {
    let (slots, driver) = (fixed(5), name("driver"));
    let mut held: Vec<_> = (0..4).map(|_| take(&slots, of_kind(&driver, VOLUME))).collect();
    held.push(take(&slots, of_kind(&driver, STATUS)));
    let mut volumes: Vec<_> = (0..3).map(|_| wait(&slots, of_kind(&driver, VOLUME))).collect();
    let mut status: Vec<_> = (0..3).map(|_| wait(&slots, of_kind(&driver, STATUS))).collect();
    held.remove(0);
    let second = got(&mut status[0]);
    assert!(second.is_some());
    held.remove(0);
    // With two each, who was served longest ago.
    assert!(got(&mut volumes[0]).is_some());
}

/// Nobody waits for a release. It comes last, and yet it comes.
#[tokio::test(start_paused = true)]
async fn releases_come_last_but_come() {
    let (slots, driver) = (fixed(2), name("driver"));
    let long = take(&slots, of_kind(&driver, ATTACHMENT));
    let mut place = take(&slots, of_kind(&driver, ATTACHMENT));
    let mut releases: Vec<_> = (0..3).map(|_| wait(&slots, release(&driver))).collect();
    let mut work: Vec<_> = (0..40).map(|_| wait(&slots, of_kind(&driver, ATTACHMENT))).collect();
    let mut order = String::new();
    while !work.is_empty() || !releases.is_empty() {
        drop(place);
        let next = [(&mut work, 'w'), (&mut releases, 'r')]
            .into_iter()
            .find_map(|(line, kind)| {
                let place = got(line.first_mut()?)?;
                drop(line.remove(0));
                Some((place, kind))
            });
        let (slot, kind) = next.expect("one is next");
        place = slot;
        order.push(kind);
    }
    let work = |count| "w".repeat(count);
    assert_eq!(order, format!("{}r{}r{}r", work(13), work(15), work(12)));
    drop((place, long));
    assert!(is_idle(&slots));
}

/// A driver that only releases waits for nobody.
#[tokio::test(start_paused = true)]
async fn the_first_release_of_a_driver_does_not_wait() {
    let (slots, crowd, driver) = (fixed(1), name("crowd"), name("driver"));
    let _held = take(&slots, about(&crowd, None));
    let first = take(&slots, release(&driver));
    let mut second = wait(&slots, release(&driver));
    drop(first);
    assert!(got(&mut second).is_some());
}
