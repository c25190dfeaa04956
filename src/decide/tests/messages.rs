//! Texts for users: cut, scrubbed, on one line.

use proptest::prelude::*;

use crate::decide::{MAX_ERROR_BYTES, cut, plain, scrub};
use crate::objects::StringMap;

#[test]
fn secrets_are_replaced_wherever_they_stand() {
    let rows: [(&str, &[&str], &str); 7] = [
        (
            "login bob/hunter2 failed",
            &["hunter2"],
            "login bob/***stripped*** failed",
        ),
        ("hunter2hunter2", &["hunter2"], "***stripped******stripped***"),
        // The longer one first: no rest of it is left.
        ("key=abcdefgh", &["abcd", "abcdefgh"], "key=***stripped***"),
        // Too short to be looked for.
        ("code 1 of 123", &["1", "123"], "code 1 of 123"),
        // Made by `echo`, quoted by the driver without its end.
        ("token hunter2 is bad", &["hunter2\n"], "token ***stripped*** is bad"),
        ("nothing", &["", "    \n"], "nothing"),
        ("no secret at all", &[], "no secret at all"),
    ];
    for (text, secrets, wanted) in rows {
        assert_eq!(scrub(text, secrets.iter().copied()), wanted);
    }
}

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
    fn no_secret_survives(
        secrets in prop::collection::vec("[0-9]{4,9}", 1..5),
        words in prop::collection::vec("[ä-ü ]{0,5}", 1..6),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut text = String::new();
        for index in order {
            text.push_str(&words[index.index(words.len())]);
            text.push_str(&secrets[index.index(secrets.len())]);
        }
        let scrubbed = scrub(&text, secrets.iter().map(String::as_str));
        for secret in &secrets {
            prop_assert!(!scrubbed.contains(secret), "{scrubbed} shows {secret}");
        }
    }

    #[test]
    fn a_plain_text_has_no_control_characters_and_its_length_in_characters(text in any::<String>()) {
        let plain = plain(&text);
        prop_assert!(!plain.chars().any(char::is_control));
        prop_assert_eq!(plain.chars().count(), text.chars().count());
    }
}
