//! Texts for users: cut, on one line.

use proptest::prelude::*;
use std::sync::Arc;

use super::builders::{attachment, volume};
use super::table::{play, retried};
use super::world::{now, on_node, world};
use crate::decide::{
    self, Failure, MAX_ERROR_BYTES, MAX_WHOLE_ERROR, Outcome, Refusal, SecretState, cut, escaped_json, is_unprintable,
    observe, plain,
};
use crate::objects::{SecretReference, StringMap};

#[test]
fn a_publish_context_that_cannot_be_stored_is_a_failure() {
    let context = |bytes: usize| {
        StringMap::from(
            [("k".to_owned(), "x".repeat(bytes - 1))]
                .into_iter()
                .collect::<std::collections::BTreeMap<_, _>>(),
        )
    };
    assert!(crate::decide::check_publish_context(&context(256 * 1024)).is_ok());
    let failure = crate::decide::check_publish_context(&context(256 * 1024 + 1)).unwrap_err();
    assert!(failure.message.contains("262145 bytes"), "{failure:?}");
    assert_eq!(failure.code, None);
}

#[test]
fn an_error_is_shown_on_one_line() {
    let world = world().pv(volume()).va(attachment());
    let snapshot = world.snapshot().unwrap();
    let observed = observe(&snapshot, &world.driver, &world.policy, SecretState::Loaded);
    let failure = Failure::plain("volume a\nb\u{1b}[31m is not there");
    for (outcome, error) in [
        (Outcome::AttachFailed(failure.clone()), "attachError"),
        (Outcome::DetachFailed(failure), "detachError"),
    ] {
        let writes = decide::settle(&observed, &outcome, now());
        let message = &writes[0].body["status"][error]["message"];
        assert_eq!(message, "volume a b [31m is not there");
    }
}

/// Whoever may write PersistentVolumes writes what they like, and people read it in a terminal.
#[test]
fn a_handle_is_shown_without_control_characters() {
    let claimed = attachment()
        .claimed()
        .set("/metadata/creationTimestamp", "2026-01-01T00:00:00Z")
        .deleting();
    let remade = volume()
        .set("/metadata/creationTimestamp", "2026-01-02T00:00:00Z")
        .set("/spec/csi/volumeHandle", "a\r\n\u{1b}[2Jb");
    let refused = "DERR(PersistentVolume pv1 was created after VolumeAttachment pv1-node1 was claimed, and nothing says which \
                   volume was: it may be another one than a   [2Jb; find out which one may be attached to node node1, and run \
                   kubectl annotate volumeattachment pv1-node1 'attacher.csi.dev/volume={\"handle\":\"ID\"}' --overwrite)";
    play(vec![
        retried(refused).when(vec![("created again", on_node(remade).va(claimed))]),
    ]);
}

/// What turns the direction, or ends a line to some readers, forges a text as a line end does.
#[test]
fn what_a_terminal_acts_upon_is_not_shown() {
    let rows = [
        ("a\u{202e}b\u{2066}c", "a b c", r"a\u202eb\u2066c"),
        ("a\u{200f}b\u{61c}c", "a b c", r"a\u200fb\u061cc"),
        ("a\u{2028}b\u{2029}c", "a b c", r"a\u2028b\u2029c"),
        ("a\u{7f}b\u{85}c\u{9b}d", "a b c d", r"a\u007fb\u0085c\u009bd"),
        // These join emoji and letters of some scripts.
        ("a\u{200c}b\u{200d}c", "a\u{200c}b\u{200d}c", "a\u{200c}b\u{200d}c"),
    ];
    for (text, shown, escaped) in rows {
        assert_eq!(plain(text), shown);
        assert_eq!(escaped_json(text), escaped);
    }
    assert_eq!(escaped_json("{\n  \"a\": 1\n}"), "{\n  \"a\": 1\n}");
}

/// A command that is cut could be pasted as it stands.
#[test]
fn the_command_of_a_refusal_is_whole_however_long_the_names_are() {
    for length in [9, 68, 160, 253] {
        let name: Arc<str> = "n".repeat(length).into();
        let secret = SecretReference {
            namespace: "s".repeat(length.min(63)).into(),
            name: Box::from(&*name),
        };
        let unknown = Refusal::VolumeUnknown {
            attachment: name.clone(),
            attached: false,
            node: name.clone(),
            volume: name.clone(),
            handle: Box::from(&*name),
            secret: Some(Box::new(secret)),
        };
        let contradicted = Refusal::NoteContradicted {
            attachment: name.clone(),
            volume: name.clone(),
            noted: Box::from(&*name),
            now: Box::from(&*name),
        };
        let word = if length > 160 { "NAME" } else { &*name };
        let command = format!("; find out which one may be attached to node {}", &name[..9]);
        let noted = format!("\"name\":\"{word}\"}}}}' --overwrite");
        let removed =
            format!("run kubectl annotate volumeattachment {word} attacher.csi.dev/volume- to have it written again");
        for (refusal, part, end) in [(unknown, &*command, noted), (contradicted, "is volume n", removed)] {
            let text = refusal.to_string();
            assert!(text.len() <= MAX_WHOLE_ERROR, "{} bytes: {text}", text.len());
            assert!(text.contains(part) && text.ends_with(&end), "{text}");
        }
    }
}

proptest! {
    #[test]
    fn a_cut_text_is_a_beginning_of_whole_characters(text in "\\PC{0,600}", limit in 0..2000_usize) {
        let kept = cut(&text, limit);
        prop_assert!(kept.len() <= limit && text.starts_with(kept));
        // No character is given up that had fitted.
        prop_assert!(kept.len() == text.len() || limit - kept.len() < 4);
        prop_assert!(cut(&text, MAX_ERROR_BYTES).len() <= MAX_ERROR_BYTES);
    }

    #[test]
    fn a_plain_text_has_no_control_characters_and_its_length_in_characters(text in any::<String>()) {
        let plain = plain(&text);
        prop_assert!(!plain.chars().any(is_unprintable));
        prop_assert_eq!(plain.chars().count(), text.chars().count());
    }
}
