use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::trace::{Span as _, Tracer as _, TracerProvider as _};
use opentelemetry_sdk::trace::SdkTracerProvider;

use super::*;

const DELAY: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(30);

/// Fails, hangs or takes, as it is set.
struct TestSink {
    hang: Arc<AtomicBool>,
    fail: Arc<AtomicBool>,
    panic: Arc<AtomicBool>,
    batches: Arc<Mutex<Vec<usize>>>,
}

impl SpanSink for TestSink {
    async fn export(&mut self, batch: Vec<SpanData>) -> Result<(), ExportError> {
        self.batches.lock().push(batch.len());
        if self.hang.load(Ordering::SeqCst) {
            pending::<()>().await;
        }
        assert!(!self.panic.load(Ordering::SeqCst), "as a library may");
        if self.fail.load(Ordering::SeqCst) {
            Err(ExportError::Failed("refused".to_owned()))
        } else {
            Ok(())
        }
    }
}

struct Fixture {
    queue: Arc<SpanQueue>,
    counters: Arc<SpanCounters>,
    provider: SdkTracerProvider,
    hang: Arc<AtomicBool>,
    fail: Arc<AtomicBool>,
    panic: Arc<AtomicBool>,
    batches: Arc<Mutex<Vec<usize>>>,
    task: tokio::task::JoinHandle<()>,
}

/// Runs the loop as a task under paused time.
fn fixture(max_queue_size: usize, max_batch_size: usize) -> Fixture {
    let settings = BatchSettings {
        schedule_delay: DELAY,
        export_timeout: TIMEOUT,
        max_queue_size,
        max_batch_size,
    };
    let counters = Arc::<SpanCounters>::default();
    let queue = SpanQueue::new(settings, Arc::clone(&counters));
    let (hang, fail, panic, batches) = (Arc::default(), Arc::default(), Arc::default(), Arc::default());
    let sink = TestSink {
        hang: Arc::clone(&hang),
        fail: Arc::clone(&fail),
        panic: Arc::clone(&panic),
        batches: Arc::clone(&batches),
    };
    let task = tokio::spawn(run(Arc::clone(&queue), sink));
    let provider = SdkTracerProvider::builder()
        .with_span_processor(CountingSpanProcessor(Arc::clone(&queue)))
        .build();
    Fixture {
        queue,
        counters,
        provider,
        hang,
        fail,
        panic,
        batches,
        task,
    }
}

impl Fixture {
    fn end_spans(&self, count: usize) {
        let tracer = self.provider.tracer("test");
        for _ in 0..count {
            tracer.start("span").end();
        }
    }

    fn counts(&self) -> SpanCounts {
        let counts = self.counters.read();
        let SpanCounts {
            ended,
            exported,
            export_failed,
            queue_full,
            shutdown,
            queue_length,
            ..
        } = counts;
        let known = exported + export_failed + queue_full + shutdown + queue_length;
        assert!(known <= ended, "{counts:?}");
        counts
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_waits_for_the_delay_and_no_longer() {
    let fixture = fixture(100, 10);
    fixture.end_spans(3);
    tokio::time::sleep(Duration::from_millis(4990)).await;
    assert_eq!(fixture.counts().exported, 0);
    fixture.end_spans(1);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(*fixture.batches.lock(), [4]);
    assert_eq!(fixture.counts().exported, 4);
}

#[tokio::test(start_paused = true)]
async fn full_batches_do_not_wait_and_the_delay_takes_the_rest() {
    let fixture = fixture(100, 10);
    fixture.end_spans(25);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(*fixture.batches.lock(), [10, 10]);
    tokio::time::sleep(DELAY * 2).await;
    assert_eq!(*fixture.batches.lock(), [10, 10, 5]);
    assert_eq!(fixture.counts().exported, 25);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_and_counts_exactly() {
    let fixture = fixture(20, 10);
    fixture.hang.store(true, Ordering::SeqCst);
    fixture.end_spans(10);
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Ten are in flight, twenty fit, seven do not.
    fixture.end_spans(27);
    let counts = fixture.counts();
    assert_eq!((counts.ended, counts.queue_length, counts.queue_full), (37, 20, 7));
    // The export that hangs is given up, and the queue moves on.
    fixture.hang.store(false, Ordering::SeqCst);
    tokio::time::sleep(TIMEOUT + DELAY * 2).await;
    let counts = fixture.counts();
    assert_eq!(
        (counts.exported, counts.export_failed, counts.queue_length),
        (20, 10, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn failures_are_counted_and_do_not_stop_the_loop() {
    let fixture = fixture(20, 10);
    fixture.fail.store(true, Ordering::SeqCst);
    fixture.end_spans(4);
    tokio::time::sleep(DELAY * 2).await;
    fixture.fail.store(false, Ordering::SeqCst);
    fixture.end_spans(2);
    tokio::time::sleep(DELAY * 2).await;
    let counts = fixture.counts();
    assert_eq!((counts.export_failed, counts.exported), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_exports_the_queue_and_refuses_more() {
    let fixture = fixture(100, 10);
    fixture.end_spans(25);
    fixture.queue.close(Instant::now() + Duration::from_secs(3));
    fixture.end_spans(2);
    fixture.task.await.unwrap();
    let counts = fixture.counters.read();
    assert_eq!((counts.exported, counts.shutdown, counts.queue_length), (25, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_up_at_its_deadline_and_counts_the_rest() {
    let fixture = fixture(100, 10);
    fixture.hang.store(true, Ordering::SeqCst);
    fixture.end_spans(35);
    tokio::time::sleep(Duration::from_millis(1)).await;
    let began = Instant::now();
    fixture.queue.close(began + Duration::from_secs(3));
    // A later, longer deadline does not extend the first.
    fixture.queue.close(began + Duration::from_mins(1));
    fixture.task.await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(3010), "{:?}", began.elapsed());
    let counts = fixture.counters.read();
    assert_eq!(
        (counts.export_failed, counts.shutdown, counts.queue_length),
        (10, 25, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn dropping_the_provider_neither_waits_nor_loses_count() {
    let fixture = fixture(100, 10);
    fixture.end_spans(5);
    drop(fixture.provider);
    fixture.task.await.unwrap();
    let counts = fixture.counters.read();
    assert_eq!((counts.ended, counts.exported), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn failures_are_logged_at_most_once_a_minute() {
    let mut log = FailureLog::default();
    let counts = SpanCounts::default();
    let mut due = Vec::new();
    for _ in 0..25 {
        let before = log.last;
        log.failed("refused", &counts);
        due.push(log.last != before);
        tokio::time::advance(Duration::from_secs(5)).await;
    }
    let logged: Vec<usize> = due
        .iter()
        .enumerate()
        .filter_map(|(index, due)| due.then_some(index))
        .collect();
    assert_eq!(logged, [0, 12, 24]);
}

/// As tonic does about an answer of a collector: the spans of that batch are lost, and the next ones are exported.
#[tokio::test(start_paused = true)]
async fn a_panic_below_is_a_failed_export() {
    let fixture = fixture(100, 2);
    fixture.panic.store(true, Ordering::SeqCst);
    fixture.end_spans(2);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(fixture.counts().export_failed, 2);
    fixture.panic.store(false, Ordering::SeqCst);
    fixture.end_spans(2);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(fixture.counts().exported, 2);
}
