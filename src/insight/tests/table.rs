//! Each finding and its cause.

use super::*;

/// An hour in which nothing changes.
const LATER: i64 = 3600;

#[test]
fn each_finding_has_its_cause() {
    use Kind::{
        AttachStuck, AttachedTwice, DetachStuck, DriverNotOnNode, InlineLeftOver, LeftOver, NodeGone, VolumeGone,
    };
    let inline = || Case { volume: None, ..well() };
    let leaving = || Case {
        deleted: Some(100),
        ..well()
    };
    let table: Vec<(&str, Case, i64, Vec<Kind>)> = vec![
        ("attached", well(), LATER, vec![]),
        (
            "young",
            Case {
                claimed: false,
                ..waiting()
            },
            300,
            vec![],
        ),
        (
            "never began",
            Case {
                claimed: false,
                ..waiting()
            },
            301,
            vec![AttachStuck],
        ),
        (
            "fails",
            Case {
                error: Some("no"),
                ..waiting()
            },
            301,
            vec![AttachStuck],
        ),
        (
            "fails, but young",
            Case {
                error: Some("no"),
                ..waiting()
            },
            299,
            vec![],
        ),
        ("one long call", waiting(), 600, vec![]),
        ("a call without end", waiting(), 601, vec![AttachStuck]),
        (
            "an error of a repair",
            Case {
                error: Some("no"),
                ..well()
            },
            LATER,
            vec![],
        ),
        ("leaving", leaving(), 700, vec![]),
        ("does not leave", leaving(), 701, vec![DetachStuck]),
        (
            "leaving fails",
            Case {
                error: Some("busy"),
                ..leaving()
            },
            401,
            vec![DetachStuck],
        ),
        (
            "leaving fails, but young",
            Case {
                error: Some("busy"),
                ..leaving()
            },
            399,
            vec![],
        ),
        (
            "held by somebody else",
            Case {
                claimed: false,
                ..leaving()
            },
            LATER,
            vec![],
        ),
        (
            "leaving, and its node is gone",
            Case {
                node: Entry::Missing,
                volume: Some(Found::Gone),
                attach_required: Some(false),
                ..leaving()
            },
            200,
            vec![],
        ),
        (
            "volume gone",
            Case {
                volume: Some(Found::Gone),
                ..well()
            },
            10,
            vec![VolumeGone],
        ),
        (
            "node gone",
            Case {
                node: Entry::Missing,
                ..well()
            },
            10,
            vec![NodeGone],
        ),
        (
            "driver gone",
            Case {
                node: Entry::WithoutDriver,
                ..well()
            },
            10,
            vec![DriverNotOnNode],
        ),
        (
            "twice",
            Case {
                attached_at: Some("m"),
                ..well()
            },
            10,
            vec![AttachedTwice],
        ),
        (
            "twice, one pod",
            Case {
                attached_at: Some("m"),
                modes: vec!["ReadWriteOncePod"],
                ..well()
            },
            10,
            vec![AttachedTwice],
        ),
        (
            "shared",
            Case {
                attached_at: Some("m"),
                modes: vec!["ReadWriteMany"],
                ..well()
            },
            10,
            vec![],
        ),
        (
            "shared or not",
            Case {
                attached_at: Some("m"),
                modes: vec!["ReadWriteOnce", "ReadOnlyMany"],
                ..well()
            },
            10,
            vec![],
        ),
        (
            "not attached here yet",
            Case {
                attached_at: Some("m"),
                ..waiting()
            },
            10,
            vec![],
        ),
        ("in-line", inline(), LATER, vec![]),
        (
            "in-line, moved",
            Case {
                wanted_at: Some("m"),
                ..inline()
            },
            10,
            vec![InlineLeftOver],
        ),
        (
            "in-line, shared",
            Case {
                wanted_at: Some("m"),
                modes: vec!["ReadWriteMany"],
                ..inline()
            },
            10,
            vec![],
        ),
        (
            "in-line, node gone",
            Case {
                node: Entry::Missing,
                ..inline()
            },
            10,
            vec![InlineLeftOver],
        ),
        (
            "in-line, driver gone",
            Case {
                node: Entry::WithoutDriver,
                ..inline()
            },
            10,
            vec![DriverNotOnNode],
        ),
        (
            "no attach required",
            Case {
                attach_required: Some(false),
                ..well()
            },
            10,
            vec![LeftOver],
        ),
        (
            "CSIDriver unknown",
            Case {
                attach_required: None,
                ..well()
            },
            10,
            vec![],
        ),
        (
            "everything",
            Case {
                node: Entry::Missing,
                volume: Some(Found::Gone),
                error: Some("no"),
                ..waiting()
            },
            LATER,
            vec![AttachStuck, VolumeGone, NodeGone],
        ),
    ];
    for (what, case, now, expected) in table {
        assert_eq!(case.kinds(now), expected, "{what}");
    }
}

#[test]
fn words_name_the_object_the_error_and_since_when() {
    let fails = Case {
        error: Some("rpc error: code = Internal desc = disk is busy"),
        ..waiting()
    };
    let text = fails.look(|looked| words(Kind::AttachStuck, looked));
    assert_eq!(
        text,
        "the attach of VolumeAttachment va to node n has been waiting since 1970-01-12T13:46:40Z; the last error: rpc \
         error: code = Internal desc = disk is busy"
    );
    for kind in Kind::ALL.iter().filter(|kind| !kind.is_of_driver()) {
        let text = well().look(|looked| words(*kind, looked));
        assert!(
            text.contains("VolumeAttachment va") && text.contains("node n"),
            "{text}"
        );
    }
}
