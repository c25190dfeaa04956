//! The slots, in virtual time.

mod kinds;
mod limits;
mod random;
mod server;
mod turns;

use futures::FutureExt as _;
use std::pin::Pin;
use std::sync::Arc;

use super::slots::{RequestSlot, RequestSlots, SlotKind, SlotLimits, SlotRequest};

const VOLUME: SlotKind = writes("persistentvolumes");
const ATTACHMENT: SlotKind = writes("volumeattachments");
const STATUS: SlotKind = writes("volumeattachments/status");

const fn writes(plural: &'static str) -> SlotKind {
    SlotKind {
        plural,
        subresource: "",
        is_write: true,
    }
}

type Waiting<'a> = Pin<Box<dyn Future<Output = RequestSlot> + 'a>>;

fn name(text: &str) -> Arc<str> {
    Arc::from(text)
}

/// A write of an attachment.
fn about<'a>(driver: &'a Arc<str>, node: Option<&'a Arc<str>>) -> SlotRequest<'a> {
    SlotRequest {
        driver,
        node,
        kind: ATTACHMENT,
        can_wait: false,
    }
}

fn of_kind(driver: &Arc<str>, kind: SlotKind) -> SlotRequest<'_> {
    SlotRequest {
        kind,
        ..about(driver, None)
    }
}

fn release(driver: &Arc<str>) -> SlotRequest<'_> {
    SlotRequest {
        can_wait: true,
        ..of_kind(driver, VOLUME)
    }
}

/// A request that waits in line.
fn wait<'a>(slots: &'a RequestSlots, request: SlotRequest<'a>) -> Waiting<'a> {
    let mut waiting: Waiting<'a> = Box::pin(slots.acquire(request));
    assert!(got(&mut waiting).is_none(), "there was a place");
    waiting
}

/// A request that does not wait.
fn take(slots: &RequestSlots, request: SlotRequest<'_>) -> RequestSlot {
    let place = slots.acquire(request).now_or_never();
    place.expect("there is a place")
}

fn got(waiting: &mut Waiting<'_>) -> Option<RequestSlot> {
    waiting.as_mut().now_or_never()
}

/// So many places whatever is answered.
fn fixed(count: usize) -> RequestSlots {
    RequestSlots::new(SlotLimits { min: count, max: count })
}

/// Whether nothing is in flight or in line.
fn is_idle(slots: &RequestSlots) -> bool {
    let state = slots.0.lock();
    state.running == 0 && state.lines_running == 0 && state.drivers.is_empty()
}

/// How many are in flight, and how many may be.
fn running_and_limit(slots: &RequestSlots) -> (usize, usize) {
    let state = slots.0.lock();
    (state.running, state.limit.now())
}
