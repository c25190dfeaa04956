//! What is remembered of a key ends with the key.

use super::super::{Item, Queue, RunResult};
use super::{ATTACH, SECOND, plain_backoff, take};

const KEY: u32 = 1;

fn queue() -> Queue<u32> {
    Queue::new(plain_backoff())
}

fn item(key: u32, fingerprint: u64) -> Item<u32> {
    Item::new(key, ATTACH, fingerprint)
}

fn remembered(queue: &Queue<u32>) -> Option<u32> {
    queue.remember(&KEY, |memory| *memory)
}

#[test]
fn what_is_remembered_is_there_before_the_key_runs() {
    let queue = queue();
    // Of nothing, nothing is remembered.
    assert_eq!(queue.remember(&KEY, |memory| *memory = 1), None);
    queue.add_and_remember(item(KEY, 1), |memory| *memory = 7);
    let run = take(&queue).unwrap();
    assert_eq!(remembered(&queue), Some(7));
    queue.add_and_remember(item(KEY, 2), |memory| *memory += 1);
    assert_eq!(remembered(&queue), Some(8));
    drop(run);
}

#[tokio::test(start_paused = true)]
async fn it_outlasts_what_does_not_settle_the_key() {
    for result in [
        RunResult::Failed,
        RunResult::FailedWith { fingerprint: 3 },
        RunResult::Requeue,
        RunResult::RequeueAfter(SECOND),
    ] {
        let queue = queue();
        queue.add_and_remember(item(KEY, 1), |memory| *memory = 7);
        take(&queue).unwrap().finish(result);
        assert_eq!(remembered(&queue), Some(7), "{result:?}");
    }
}

#[test]
fn it_ends_when_the_key_is_settled_or_forgotten() {
    let queue = queue();
    queue.add_and_remember(item(KEY, 1), |memory| *memory = 7);
    take(&queue).unwrap().finish(RunResult::Done);
    assert_eq!(remembered(&queue), None);

    // Settled, and to be run again for what came in meanwhile: that is another wait.
    queue.add_and_remember(item(KEY, 1), |memory| *memory = 7);
    let run = take(&queue).unwrap();
    queue.add(item(KEY, 2));
    run.finish(RunResult::Done);
    assert_eq!(remembered(&queue), Some(0));

    queue.remember(&KEY, |memory| *memory = 9);
    assert_eq!(queue.forget(&KEY), Some(9));
    assert_eq!(remembered(&queue), None);
}

#[test]
fn who_forgets_a_key_that_runs_gets_what_is_remembered() {
    for result in [RunResult::Done, RunResult::Failed] {
        let queue = queue();
        queue.add_and_remember(item(KEY, 1), |memory| *memory = 7);
        let run = take(&queue).unwrap();
        assert_eq!(queue.forget(&KEY), Some(7));
        assert_eq!(remembered(&queue), Some(0), "its run may still write things down");
        // A new object of the same name.
        queue.add_and_remember(item(KEY, 1), |memory| *memory = 5);
        run.finish(result);
        assert_eq!(remembered(&queue), Some(5), "{result:?}");
    }
}

#[test]
fn all_that_is_remembered_can_be_changed() {
    let queue = queue();
    for key in [KEY, 2] {
        queue.add_and_remember(item(key, 1), |memory| *memory = 1);
    }
    let mut sum = 0;
    queue.remember_all(|_, memory| {
        *memory += 1;
        sum += *memory;
    });
    assert_eq!((sum, remembered(&queue)), (4, Some(2)));
}
