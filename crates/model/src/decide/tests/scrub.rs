//! Texts of drivers without the secrets that they were sent.

use k8s_openapi::ByteString;
use proptest::prelude::*;
use std::fmt::Write as _;

use crate::decide::{self, SecretValues};

const STRIPPED: &str = "***stripped***";

fn scrub<'a>(text: &str, secrets: impl IntoIterator<Item = &'a str>) -> String {
    decide::scrub(text, &SecretValues::new(secrets))
}

#[test]
fn secrets_are_replaced_wherever_they_stand() {
    let rows: [(&str, &[&str], &str); 8] = [
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
        (
            "a=1&b=2&amp;c=3&hunter2;",
            &["hunter2"],
            "a=1&b=2&amp;c=3&***stripped***;",
        ),
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
        ("html.EscapeString", r"p&#34;a\s+s/w=o&amp;r dé&lt;"),
        ("html.escape of Python", r"p&quot;a\s+s/w=o&amp;r dé&lt;"),
        ("XML", r"p&#34;a\s+s/w=o&amp;r dé&lt;&#xA;"),
        ("XML in ASCII", r"p&quot;a\s+s/w=o&amp;r d&#233;&#x3c;&#10;"),
        ("htmlspecialchars of PHP", r"p&#034;a\s+s/w=o&#038;r d&#xE9;&#x3C;"),
        ("base64", "cCJhXHMrcy93PW8mciBkw6k8Cg=="),
        ("base64 without padding", "cCJhXHMrcy93PW8mciBkw6k8Cg"),
        ("base64 of `user:` and it", "dXNlcjpwImFccytzL3c9byZyIGTDqTwK"),
        ("hex", "7022615c732b732f773d6f26722064c3a93c0a"),
        ("HEX", "7022615C732B732F773D6F26722064C3A93C0A"),
    ];
    for (encoding, printed) in rows {
        let scrubbed = scrub(&format!("refused: {printed}!"), [SECRET]);
        let shown = scrubbed.replace("***stripped***", "");
        let is_stripped = scrubbed.contains("***stripped***") && shown.len() <= "refused: dXNlcj!\\u000A".len();
        assert!(is_stripped, "{encoding}: {scrubbed}");
    }
}

fn json(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap();
    quoted[1..quoted.len() - 1].to_owned()
}

/// With all but ASCII as `\uXXXX`.
fn ascii_json(text: &str) -> String {
    let mut printed = String::new();
    for character in json(text).chars() {
        if character.is_ascii() {
            printed.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(printed, "\\u{unit:04x}").unwrap();
            }
        }
    }
    printed
}

/// `%q` of Go: `strconv.Quote`, without the quotation marks.
fn go_quoted(text: &str) -> String {
    let mut printed = String::new();
    for character in text.chars() {
        match character {
            '\n' => printed.push_str("\\n"),
            '\t' => printed.push_str("\\t"),
            '\r' => printed.push_str("\\r"),
            '\x07' => printed.push_str("\\a"),
            '"' | '\\' => printed.extend(['\\', character]),
            _ if character < ' ' || character == '\x7f' => write!(printed, "\\x{:02x}", u32::from(character)).unwrap(),
            _ => printed.push(character),
        }
    }
    printed
}

/// Percent-encoded but for letters, digits and `plain`.
fn percent(text: &str, plain: &str, upper: bool) -> String {
    let mut printed = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || plain.as_bytes().contains(&byte) {
            printed.push(char::from(byte));
        } else if upper {
            write!(printed, "%{byte:02X}").unwrap();
        } else {
            write!(printed, "%{byte:02x}").unwrap();
        }
    }
    printed
}

/// As XML has it; all but ASCII, and what is no text, by numbers.
fn xml(text: &str) -> String {
    let mut printed = String::new();
    for character in text.chars() {
        match character {
            '&' => printed.push_str("&amp;"),
            '<' => printed.push_str("&lt;"),
            '"' => printed.push_str("&quot;"),
            ' '..='~' => printed.push(character),
            _ => write!(printed, "&#x{:X};", u32::from(character)).unwrap(),
        }
    }
    printed
}

fn base64(text: &str) -> String {
    let json = serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap();
    json.as_str().unwrap().to_owned()
}

fn hex(text: &str) -> String {
    text.bytes().fold(String::new(), |mut printed, byte| {
        write!(printed, "{byte:02x}").unwrap();
        printed
    })
}

fn url_base64(text: &str) -> String {
    base64(text).replace('+', "-").replace('/', "_")
}

/// The characters of base64 that come from a text alone when `offset` bytes and more stand before it and others after it.
fn inner_base64(text: &str, offset: usize) -> String {
    let whole = base64(&["0".repeat(offset).as_str(), text].concat());
    whole[(offset * 8).div_ceil(6)..(offset + text.len()) * 8 / 6].to_owned()
}

/// All forms in which a text is recognised.
fn printed(secret: &str) -> Vec<String> {
    vec![
        secret.to_owned(),
        json(secret),
        ascii_json(secret),
        json(secret).replace('/', "\\/").replace('<', "\\u003C"),
        go_quoted(secret),
        percent(secret, "-_.~$&+=:@", true),
        percent(secret, "-_.~", false),
        percent(secret, "-_.~ ", true).replace(' ', "+"),
        xml(secret),
        xml(secret).replace("&quot;", "&#34;").replace("&lt;", "&#60;"),
        base64(secret),
        base64(secret).trim_end_matches('=').to_owned(),
        url_base64(secret),
        url_base64(secret).trim_end_matches('=').to_owned(),
        hex(secret),
        hex(secret).to_uppercase(),
    ]
}

/// Nothing around a form goes with it.
#[test]
fn what_stands_around_a_secret_stays() {
    const SECRET: &str = "p\"a\\s+s/w=o&r d";
    for form in printed(SECRET) {
        let wanted = format!("before {STRIPPED} after");
        assert_eq!(scrub(&format!("before {form} after"), [SECRET]), wanted, "{form}");
    }
}

/// A number has no sign: that is no entity.
#[test]
fn what_is_no_entity_is_not_read_as_one() {
    for other in ["o&#+38;rs", "o&#-38;rs", "o&#x+26;rs", "o&#;rs", "o&#x;rs"] {
        assert_eq!(scrub(other, ["o&rs"]), other);
    }
}

/// Programs break what is long, anywhere: `base64` at 76 characters, `openssl base64` at 64, `xxd` after two bytes.
#[test]
fn an_encoding_that_is_broken_into_lines_hides_nothing() {
    // As long as a line of PEM, of which the base64 never fits on one line.
    const SECRET: &str = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj";
    let whole = base64(SECRET);
    let unpadded = whole.trim_end_matches('=').to_owned();
    // The last two break the padding off, and apart.
    let breaks = [
        (1, " "),
        (4, "\t"),
        (60, "\n"),
        (64, "\r\n"),
        (76, "\n"),
        (86, "\n"),
        (87, "\n  "),
    ];
    for form in [whole, unpadded, url_base64(SECRET), hex(SECRET)] {
        for (width, line_end) in breaks {
            let lines: Vec<&[u8]> = form.as_bytes().chunks(width).collect();
            let broken = String::from_utf8(lines.join(line_end.as_bytes())).unwrap();
            let wanted = format!("before\n{STRIPPED}\nafter");
            assert_eq!(scrub(&format!("before\n{broken}\nafter"), [SECRET]), wanted, "{broken}");
        }
    }
}

proptest! {
    #[test]
    fn no_form_of_a_secret_survives(
        secrets in prop::collection::vec("[a-c\"\\\\+/=&% <\n\t\u{7}\u{e9}\u{1f600}]{6,24}", 1..4),
        around in prop::collection::vec("[x-z\\\\%+\" =\u{e4}]{0,4}", 2..8),
    ) {
        let secrets: Vec<&str> = secrets.iter().map(|secret| secret.trim()).filter(|secret| secret.len() > 4).collect();
        for secret in &secrets {
            for form in printed(secret) {
                let text = around.iter().fold(String::new(), |text, word| [text.as_str(), word, &form].concat());
                let scrubbed = scrub(&text, secrets.iter().copied());
                prop_assert!(!scrubbed.contains(&form), "{scrubbed} shows {form} of {secret:?}");
                prop_assert!(scrubbed.contains(STRIPPED));
            }
        }
    }

    /// As in `Authorization: Basic`, where the name of the user stands before it.
    #[test]
    fn no_secret_survives_in_the_middle_of_base64(
        secret in "[ -~]{6,24}", before in "[a-z]{0,7}", after in "[a-z]{0,7}", url: bool,
    ) {
        let secret = secret.trim();
        prop_assume!(secret.len() > 4);
        let text = format!("basic {}", base64(&[&before, secret, &after].concat()));
        let text = if url { text.replace('+', "-").replace('/', "_") } else { text };
        let scrubbed = scrub(&text, [secret]);
        let inner = inner_base64(secret, before.len());
        let inner = if url { inner.replace('+', "-").replace('/', "_") } else { inner };
        prop_assert!(!scrubbed.contains(&inner) && scrubbed.contains(STRIPPED), "{scrubbed} shows {inner}");
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
    fn what_has_no_secret_stays_as_it_is(text in "\\PC{0,80}", secret in "[0-9]{12}") {
        prop_assume!(!text.contains(&secret));
        prop_assert_eq!(scrub(&text, [secret.as_str()]), text);
    }

    /// Of a long text a part is kept; what is left of a secret at its end is no part of it.
    #[test]
    fn a_text_is_not_cut_in_the_middle_of_a_secret(before in 16_300_usize..16_400, form in 0_usize..16) {
        const SECRET: &str = "swordfish/of&the\"canary\\and its+friends=";
        let form = &printed(SECRET)[form];
        let text = format!("{}{form}{}", "-".repeat(before), "~".repeat(1 << 20));
        let scrubbed = scrub(&text, [SECRET]);
        prop_assert!(scrubbed.len() <= (16 << 10) + STRIPPED.len());
        let shown = scrubbed.trim_start_matches('-').trim_end_matches('~').replace(STRIPPED, "");
        // The beginning of a base64 form ends with bits of the next byte.
        prop_assert!(shown.len() <= 24 && form.starts_with(&shown), "{shown}");
    }
}

/// Values are sorted once for all texts, and shown nowhere.
#[test]
fn values_serve_for_many_texts() {
    let values = SecretValues::new(["swordfish\r\n  hunter2 \n\nabc", "hunter2"]);
    assert_eq!(format!("{values:?}"), "<3 redacted>", "the whole, and two lines");
    for text in ["swordfish", "hunter2"] {
        let scrubbed = decide::scrub(&format!("no {text}, abc"), &values);
        assert_eq!(scrubbed, format!("no {STRIPPED}, abc"));
    }
    assert_eq!(decide::scrub("swordfish", &SecretValues::default()), "swordfish");
}

/// The cost is bounded, whatever driver and secrets are.
#[test]
fn a_search_that_takes_too_long_shows_nothing() {
    let secret = format!("{}b", "a".repeat(1 << 20));
    let text = "a".repeat(4 << 20);
    let scrubbed = scrub(&text, [secret.as_str()]);
    let wanted = format!("{STRIPPED} (the text took too long to be searched for secrets)");
    assert_eq!(scrubbed, wanted);
    // An answer of blanks alone is none.
    let blanks = " \n".repeat(1 << 12);
    assert_eq!(scrub(&blanks, [secret.as_str()]), blanks);
    // Many values, and many lines of them, cost no more than one.
    let lines: String = (0..100_000).fold(String::new(), |lines, number| lines + &format!("line{number:05}\n"));
    let shown = scrub(&"line and no more ".repeat(1000), [lines.as_str()]);
    assert!(
        shown.starts_with("line and no more") && !shown.contains(STRIPPED),
        "{}",
        &shown[..100]
    );
    let shown = scrub("refused: line00999!", [lines.as_str()]);
    assert_eq!(shown, format!("refused: {STRIPPED}!"));
}
