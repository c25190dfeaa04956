//! What is logged during a test.

use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// The lines of this thread from INFO on, for as long as this lives: those of a test whose tasks all run on its own thread.
pub struct Logged {
    lines: Lines,
    _default: DefaultGuard,
}

/// Level and message of each line.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

/// The message of a line.
#[derive(Default)]
struct Message(String);

impl Logged {
    pub fn start() -> Self {
        // With one subscriber alone, a line that another thread meets first would be switched off for this thread too.
        static ANOTHER: OnceLock<Dispatch> = OnceLock::new();
        ANOTHER.get_or_init(|| Dispatch::new(NoSubscriber::default()));
        let lines = Lines::default();
        let subscriber = tracing_subscriber::registry()
            .with(LevelFilter::INFO)
            .with(lines.clone());
        Self {
            lines,
            _default: tracing::subscriber::set_default(subscriber),
        }
    }

    /// How many lines of this level have these words in their message.
    pub fn count(&self, level: Level, words: &str) -> usize {
        let lines = self.lines.0.lock();
        let is_counted = |(of, message): &&(Level, String)| *of == level && message.contains(words);
        lines.iter().filter(is_counted).count()
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut message = Message::default();
        event.record(&mut message);
        self.0.lock().push((*event.metadata().level(), message.0));
    }
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
