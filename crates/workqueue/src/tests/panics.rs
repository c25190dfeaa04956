use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::{Builder, Lane, Observer, RunResult};
use super::{SECOND, item, plain_backoff, take};

#[derive(Default)]
struct Panics(Mutex<Vec<String>>);

impl Observer for Panics {
    fn panicked(&self, lane: Lane, key: &dyn Debug, message: &str) {
        self.0.lock().push(format!("{} {key:?} {message}", lane.index()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_fails_its_run() {
    let panics = Arc::new(Panics::default());
    let queue = Builder {
        observer: panics.clone(),
        ..Builder::new(plain_backoff())
    }
    .build();
    queue.add(item("early", 0));
    let ticket = take(&queue).unwrap();
    ticket
        .work(|view| {
            assert_ne!(view.key, "early", "before the future");
            async { RunResult::Done }
        })
        .await;
    assert_eq!(queue.failures(&"early"), 1);

    tokio::time::advance(SECOND).await;
    let ticket = take(&queue).unwrap();
    ticket
        .work(async |_| {
            assert!(panics.0.lock().is_empty(), "inside of the future");
            RunResult::Done
        })
        .await;
    assert_eq!(queue.failures(&"early"), 2);

    tokio::time::advance(2 * SECOND).await;
    take(&queue).unwrap().work(async |_| RunResult::Done).await;
    assert!(queue.is_empty());
    let panics = panics.0.lock();
    assert!(
        panics[0].starts_with("0 \"early\" ") && panics[0].contains("before the future"),
        "{panics:?}"
    );
    assert_eq!(panics[1], "0 \"early\" inside of the future");
    assert_eq!(panics.len(), 2);
}
