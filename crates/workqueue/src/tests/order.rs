use super::super::{AddResult, Item, RunResult, Trigger};
use super::{ATTACH, DETACH, VOLUME, item, limited, limits, queue, settle, settle_all, take};

fn of(key: &'static str, group: &str) -> Item<&'static str> {
    item(key, 0).in_group(group)
}

#[tokio::test(start_paused = true)]
async fn first_in_first_out() {
    let queue = queue();
    for key in ["c", "a", "b"] {
        assert_eq!(queue.add(item(key, 0)), AddResult::Queued);
    }
    assert_eq!(settle_all(&queue), ["c", "a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_waits_is_not_queued_twice_and_keeps_its_place() {
    let queue = queue();
    queue.add(item("a", 1));
    queue.add(item("b", 1));
    assert_eq!(queue.add(item("a", 2)), AddResult::Waiting);
    let first = take(&queue).unwrap();
    assert_eq!(
        (*first.key(), first.fingerprint(), first.trigger()),
        ("a", 2, Trigger::Event)
    );
    first.finish(RunResult::Done);
    assert_eq!(settle_all(&queue), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn the_groups_of_a_lane_take_turns() {
    let queue = queue();
    for (key, group) in [
        ("a1", "a"),
        ("a2", "a"),
        ("a3", "a"),
        ("b1", "b"),
        ("b2", "b"),
        ("c1", "c"),
    ] {
        queue.add(of(key, group));
    }
    assert_eq!(settle_all(&queue), ["a1", "b1", "c1", "a2", "b2", "a3"]);
}

#[tokio::test(start_paused = true)]
async fn a_late_group_waits_for_one_turn_of_each_other_group() {
    let queue = queue();
    for key in ["a1", "a2", "a3"] {
        queue.add(of(key, "a"));
    }
    assert_eq!(settle(&queue), Some("a1"));
    queue.add(of("b1", "b"));
    assert_eq!(settle_all(&queue), ["a2", "b1", "a3"]);
}

#[tokio::test(start_paused = true)]
async fn keys_without_a_group_share_one() {
    let queue = queue();
    for key in ["x", "y", "z"] {
        queue.add(item(key, 0));
    }
    queue.add(of("a1", "a"));
    queue.add(of("a2", "a"));
    assert_eq!(settle_all(&queue), ["x", "a1", "y", "a2", "z"]);
}

#[tokio::test(start_paused = true)]
async fn the_lanes_take_turns() {
    let queue = queue();
    for key in ["a1", "a2", "a3"] {
        queue.add(item(key, 0));
    }
    queue.add(Item::new("d1", DETACH, 0));
    queue.add(Item::new("v1", VOLUME, 0));
    assert_eq!(settle_all(&queue), ["a1", "d1", "v1", "a2", "a3"]);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_key_moves_to_another_lane() {
    let queue = limited(limits([1, 1, 1], 0, 0));
    queue.add(item("busy", 0));
    let busy = take(&queue).unwrap();
    queue.add(of("a", "node"));
    assert!(take(&queue).is_none(), "the attach lane is full");
    assert_eq!(
        queue.add(Item::new("a", DETACH, 1).in_group("node")),
        AddResult::Waiting
    );
    let moved = take(&queue).unwrap();
    assert_eq!((*moved.key(), moved.lane(), moved.fingerprint()), ("a", DETACH, 1));
    moved.finish(RunResult::Done);
    busy.finish(RunResult::Done);
    assert!(take(&queue).is_none(), "nothing stayed behind in the attach lane");
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_key_moves_to_another_group() {
    let queue = limited(limits([0; 3], 1, 0));
    queue.add(of("busy", "a"));
    let busy = take(&queue).unwrap();
    queue.add(of("x", "a"));
    assert!(take(&queue).is_none());
    queue.add(of("x", "b"));
    assert_eq!(settle(&queue), Some("x"));
    busy.finish(RunResult::Done);
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_add_during_a_run_queues_the_key_once_more_with_the_newest_inputs() {
    let queue = queue();
    queue.add(item("a", 1));
    let run = take(&queue).unwrap();
    assert_eq!(queue.add(item("a", 2)), AddResult::Dirty);
    assert_eq!(queue.add(Item::new("a", DETACH, 3).in_group("node")), AddResult::Dirty);
    assert!(take(&queue).is_none(), "one run of a key at a time");
    run.finish(RunResult::Done);
    let again = take(&queue).unwrap();
    assert_eq!(
        (again.lane(), again.fingerprint(), again.group().map(AsRef::as_ref)),
        (DETACH, 3, Some("node"))
    );
    assert_eq!((again.trigger(), again.attempt()), (Trigger::Event, 1));
    again.finish(RunResult::Done);
    assert!(take(&queue).is_none());
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_run_keeps_its_slot_when_an_add_moves_its_key() {
    let queue = limited(limits([1, 1, 0], 0, 0));
    queue.add(item("a", 0));
    let run = take(&queue).unwrap();
    queue.add(Item::new("a", DETACH, 0));
    queue.add(Item::new("d", DETACH, 0));
    queue.add(item("b", 0));
    let stats = queue.stats();
    assert_eq!(
        (stats.lanes[ATTACH.index()].running, stats.lanes[DETACH.index()].running),
        (1, 0)
    );
    assert_eq!(
        settle_all(&queue),
        ["d"],
        "the attach slot is taken, the detach slot is not"
    );
    run.finish(RunResult::Done);
    assert_eq!(
        settle_all(&queue),
        ["b", "a"],
        "a now waits in the detach lane, which had its turn"
    );
}

#[tokio::test(start_paused = true)]
async fn again_goes_to_the_end_of_the_group() {
    let queue = queue();
    queue.add(item("a", 0));
    queue.add(item("b", 0));
    take(&queue).unwrap().finish(RunResult::Requeue);
    assert_eq!(settle(&queue), Some("b"));
    let again = take(&queue).unwrap();
    assert_eq!((again.trigger(), again.failures()), (Trigger::Again, 0));
}
