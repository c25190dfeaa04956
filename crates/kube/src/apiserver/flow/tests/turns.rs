//! Whose turn it is.

use std::pin::pin;
use std::time::Duration;

use futures::FutureExt as _;

use super::*;

/// Hands the only place on, and checks that those in line get it in this order.
fn passes_on(mut place: RequestSlot, line: &mut [Waiting<'_>], order: &[usize]) {
    for &next in order {
        drop(place);
        place = got(&mut line[next]).unwrap_or_else(|| panic!("{next} is not next"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_alone_has_all_places() {
    let (slots, driver) = (fixed(3), name("a"));
    let mut held: Vec<RequestSlot> = (0..3).map(|_| take(&slots, about(&driver, None))).collect();
    let mut fourth = wait(&slots, about(&driver, None));
    held.pop();
    assert!(got(&mut fourth).is_some());
}

/// Also when all places are taken by many drivers, each with a long line: correctness review, C3 (a), and H6.
#[tokio::test(start_paused = true)]
async fn the_first_request_of_a_driver_never_waits() {
    let slots = fixed(2);
    let drivers: Vec<_> = (0..40).map(|number| name(&number.to_string())).collect();
    let mut held = Vec::new();
    for driver in &drivers {
        held.push(take(&slots, about(driver, None)));
    }
    let mut lines: Vec<_> = drivers.iter().map(|driver| wait(&slots, about(driver, None))).collect();
    let another = name("another");
    let first = take(&slots, about(&another, None));
    // A second one waits as theirs do.
    let mut second = wait(&slots, about(&another, None));
    drop(first);
    let second = got(&mut second);
    assert!(second.is_some(), "it has none in flight");
    drop(held.remove(0));
    assert!(got(&mut lines[0]).is_some(), "nor has this one");
}

#[tokio::test(start_paused = true)]
async fn the_next_place_is_for_the_driver_with_the_fewest() {
    let (slots, crowd, other) = (fixed(5), name("crowd"), name("other"));
    let mut held: Vec<_> = (0..4).map(|_| take(&slots, about(&crowd, None))).collect();
    let mut crowd_waits: Vec<_> = (0..5).map(|_| wait(&slots, about(&crowd, None))).collect();
    let first = take(&slots, about(&other, None));
    let mut other_waits = wait(&slots, about(&other, None));
    held.pop();
    assert!(got(&mut other_waits).is_none(), "one kind has at most three quarters");
    held.pop();
    let second = got(&mut other_waits);
    assert!(second.is_some(), "it came last and has fewer in flight");
    drop((first, second));
    assert!(got(&mut crowd_waits[0]).is_some());
}

/// Drivers that have equally many in flight take turns, however long the lines of some are.
#[tokio::test(start_paused = true)]
async fn drivers_take_turns() {
    let (slots, crowd) = (fixed(8), name("crowd"));
    let drivers = [name("a"), name("b"), name("c")];
    let _first = drivers.each_ref().map(|driver| take(&slots, about(driver, None)));
    let mut held: Vec<_> = (0..5).map(|_| take(&slots, of_kind(&crowd, STATUS))).collect();
    let mut lines: Vec<Vec<Waiting<'_>>> = Vec::new();
    for (driver, length) in drivers.iter().zip([9, 9, 1]) {
        lines.push((0..length).map(|_| wait(&slots, about(driver, None))).collect());
    }
    let mut places = Vec::new();
    for expected in [0, 1, 2] {
        held.pop();
        let got = got(&mut lines[expected][0]);
        assert!(got.is_some(), "{expected} is next");
        places.push(got);
        drop(lines[expected].remove(0));
    }
}

/// The detaches of a node that is drained do not keep an attach to another node waiting.
#[tokio::test(start_paused = true)]
async fn within_a_driver_the_nodes_take_turns() {
    let (slots, driver) = (fixed(1), name("driver"));
    let (drained, other) = (name("drained"), name("other"));
    let held = take(&slots, about(&driver, Some(&drained)));
    let nodes = [&drained, &drained, &drained, &drained, &drained, &other, &other];
    let mut line = nodes.map(|node| wait(&slots, about(&driver, Some(node))));
    passes_on(held, &mut line, &[0, 5, 1, 6, 2, 3, 4]);
    assert!(is_idle(&slots));
}

/// What is about no node is in no line behind others of its kind.
#[tokio::test(start_paused = true)]
async fn requests_about_no_node_have_a_turn_each() {
    let (slots, driver, node) = (fixed(1), name("driver"), name("node"));
    let held = take(&slots, about(&driver, Some(&node)));
    let mut line = [Some(&node), Some(&node), None, None].map(|node| wait(&slots, about(&driver, node)));
    passes_on(held, &mut line, &[0, 2, 3, 1]);
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_waiting_keeps_no_place() {
    let (slots, driver) = (fixed(1), name("a"));
    let held = take(&slots, about(&driver, None));
    let given_up = wait(&slots, about(&driver, None));
    let mut last = wait(&slots, about(&driver, None));
    drop(given_up);
    drop(held);
    let place = got(&mut last);
    assert!(place.is_some());
    // One that was given the place and gives up before it looks.
    let unlooked = wait(&slots, about(&driver, None));
    let mut next = wait(&slots, about(&driver, None));
    drop(place);
    drop(unlooked);
    drop(got(&mut next).unwrap());
    assert!(is_idle(&slots));
    let again = pin!(slots.acquire(about(&driver, None)));
    assert!(again.now_or_never().is_some());
}

/// A wait has no end of its own; it goes on after it was logged.
#[tokio::test(start_paused = true)]
async fn a_long_wait_ends_with_a_place() {
    let (slots, driver) = (fixed(1), name("a"));
    let held = take(&slots, about(&driver, None));
    let waiter = tokio::spawn({
        let (slots, driver) = (slots.clone(), driver.clone());
        async move { drop(slots.acquire(about(&driver, None)).await) }
    });
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert!(!waiter.is_finished());
    drop(held);
    waiter.await.unwrap();
    assert!(is_idle(&slots));
}
