//! The text of an Event about a failed attempt, written and read back.

use std::time::Duration;

use crate::decide::{MAX_ERROR_BYTES, MAX_WHOLE_ERROR, cut};
use crate::findings::FailureNote;
use crate::objects::Operation;

fn note() -> FailureNote<'static> {
    FailureNote {
        volume: Some("ssd-0002"),
        attempt: 7,
        operation: Operation::Attach,
        node: "node-2",
        uncertain: false,
        delay: Duration::from_millis(1_500),
        message: "rpc error: code = Internal desc = busy; retrying in 3 s: really",
    }
}

#[test]
fn what_is_written_is_read_back() {
    let rows = [
        note(),
        FailureNote { volume: None, ..note() },
        FailureNote {
            operation: Operation::Detach,
            ..note()
        },
        FailureNote {
            uncertain: true,
            ..note()
        },
        FailureNote {
            delay: Duration::ZERO,
            message: "",
            ..note()
        },
    ];
    for row in rows {
        let text = row.to_string();
        assert_eq!(FailureNote::parse(&text), Some(row), "{text}");
    }
}

/// A handle may be longer than an Event, which is cut at its end.
#[test]
fn volume_and_node_leave_room_for_the_message() {
    let (handle, node) = ("h".repeat(1_100), "n".repeat(253));
    let (whole, longer) = ("m".repeat(MAX_WHOLE_ERROR), "m".repeat(4_096));
    for message in ["no", &*whole, &*longer] {
        let row = FailureNote {
            volume: Some(&handle),
            node: &node,
            uncertain: true,
            message,
            ..note()
        };
        let text = row.to_string();
        let read = FailureNote::parse(cut(&text, MAX_ERROR_BYTES)).unwrap();
        assert_eq!(
            (read.attempt, read.operation, read.delay),
            (7, row.operation, row.delay)
        );
        assert!(
            read.volume.unwrap().starts_with("hhh") && read.node.starts_with("nnn"),
            "{text}"
        );
        assert!(read.message.len() >= message.len().min(MAX_WHOLE_ERROR), "{text}");
    }
}

#[test]
fn the_text_is_the_one_that_people_know() {
    assert_eq!(
        note().to_string(),
        "volume ssd-0002: attempt 7 to attach it to node node-2 failed; retrying in 1.5 s: rpc error: code = Internal desc = \
         busy; retrying in 3 s: really"
    );
    let doubt = FailureNote {
        uncertain: true,
        ..note()
    };
    assert!(
        doubt
            .to_string()
            .contains(" failed; the call may still be in progress and the volume may be attached; retrying")
    );
}

#[test]
fn other_texts_are_none() {
    for text in [
        "",
        "volume v: attached to node n in attempt 1, 1.1 s after it was requested",
        "volume v: attempt x to attach it to node n failed; retrying in 1.0 s: m",
        "volume v: attempt 1 to attach it to node n failed; retrying in -1.0 s: m",
        "volume v: attempt 1 to attach it to node n failed",
    ] {
        assert_eq!(FailureNote::parse(text), None, "{text}");
    }
}
