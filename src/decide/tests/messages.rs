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

/// What a driver may print instead of a secret, by the program that prints it.
#[test]
fn a_secret_is_recognised_however_it_is_printed() {
    const SECRET: &str = "p\"a\\s+s/w=o&r d\u{e9}<\n";
    let rows = [
        ("as it stands", "p\"a\\s+s/w=o&r d\u{e9}<"),
        ("%q of Go", r#"p\"a\\s+s/w=o&r dé<\n"#),
        ("%+q of Go", r#"p\"a\\s+s/w=o&r d\u00e9<\n"#),
        ("JSON", r#"p\"a\\s+s/w=o&r dé<\n"#),
        ("JSON of Go", r#"p\"a\\s+s/w=o\u0026r dé\u003c\n"#),
        ("JSON of PHP", r#"p\"a\\s+s\/w=o&r d\u00E9<\u000A"#),
        ("url.PathEscape", "p%22a%5Cs+s%2Fw=o&r%20d%C3%A9%3C%0A"),
        ("url.QueryEscape", "p%22a%5Cs%2Bs%2Fw%3Do%26r+d%C3%A9%3C%0A"),
        ("a query in lower case", "p%22a%5cs%2bs%2fw%3do%26r%20d%c3%a9%3c%0a"),
        ("base64", "cCJhXHMrcy93PW8mciBkw6k8Cg=="),
        ("base64 without padding", "cCJhXHMrcy93PW8mciBkw6k8Cg"),
        ("base64 of `user:` and it", "dXNlcjpwImFccytzL3c9byZyIGTDqTwK"),
        ("hex", "7022615c732b732f773d6f26722064c3a93c0a"),
        ("HEX", "7022615C732B732F773D6F26722064C3A93C0A"),
    ];
    for (encoding, printed) in rows {
        let scrubbed = scrub(&format!("refused: {printed}!"), [SECRET]);
        let shown = scrubbed.replace("***stripped***", "");
        assert!(
            scrubbed.contains("***stripped***") && shown.len() <= "refused: dXNlcj!\\u000A".len(),
            "{encoding}: {scrubbed}"
        );
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
