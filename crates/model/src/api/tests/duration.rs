//! Durations against the behaviour of Go's `time` package.

use std::time::Duration;

use proptest::prelude::*;

use crate::api::duration::{DurationError, GoDuration};

const NS: i64 = 1;
const US: i64 = 1_000 * NS;
const MS: i64 = 1_000 * US;
const S: i64 = 1_000 * MS;
const M: i64 = 60 * S;
const H: i64 = 60 * M;

/// What `time.ParseDuration` returns for these texts, found by running Go 1.24 or later.
const PARSED_BY_GO: &[(&str, i64)] = &[
    ("0", 0),
    ("+0", 0),
    ("-0", 0),
    ("0s", 0),
    ("5s", 5 * S),
    ("+5s", 5 * S),
    ("-5s", -5 * S),
    ("1478s", 1478 * S),
    ("00030s", 30 * S),
    ("5.0s", 5 * S),
    ("5.s", 5 * S),
    (".5s", S / 2),
    ("-.5s", -S / 2),
    ("5.6s", 5 * S + 600 * MS),
    ("1.004s", S + 4 * MS),
    ("100.00100s", 100 * S + MS),
    ("10ns", 10),
    ("11us", 11 * US),
    ("12\u{b5}s", 12 * US),
    ("12\u{3bc}s", 12 * US),
    ("13ms", 13 * MS),
    ("15m", 15 * M),
    ("16h", 16 * H),
    ("3h30m", 3 * H + 30 * M),
    ("30m3h", 3 * H + 30 * M),
    ("10.5s4m", 4 * M + 10 * S + 500 * MS),
    ("-2m3.4s", -(2 * M + 3 * S + 400 * MS)),
    ("1h2m3s4ms5us6ns", H + 2 * M + 3 * S + 4 * MS + 5 * US + 6),
    ("0.9ns", 0),
    ("1.9ns", 1),
    ("0.3333333333333333333h", 20 * M),
    ("0.100000000000000000000h", 6 * M),
    ("9007199254.740993ms", 9_007_199_254_740_993),
    ("9223372036854775807ns", i64::MAX),
    ("9223372036854775.807us", i64::MAX),
    ("-9223372036854775808ns", i64::MIN),
    ("-2562047h47m16.854775808s", i64::MIN),
    ("2562047h47m16.854775807s", i64::MAX),
];

/// Texts that `time.ParseDuration` refuses.
const REFUSED_BY_GO: &[&str] = &[
    "",
    "-",
    "+",
    "3",
    "00",
    "--1s",
    "+-1s",
    "s",
    ".",
    "-.",
    ".s",
    "+.s",
    "1d",
    "1w",
    "1S",
    "1H",
    "1 s",
    " 1s",
    "1s ",
    "1s 2s",
    "1e3s",
    "1,5s",
    "0x1s",
    "1_000s",
    "1..5s",
    "1.5.5s",
    "-1s-1s",
    "1m-1s",
    "infinity",
    "٣s",
    "1µ",
    "1µss",
    "1\0s",
    "9223372036854775808ns",
    "9223372036854775.808us",
    "-9223372036854775809ns",
    "2562047h47m16.854775808s",
    "9223372036854ms775us808ns",
    "3000000h",
    "99999999999999999999s",
    "100000000000000000000000000000000000000000h",
];

#[test]
fn parses_what_go_parses() {
    for (text, nanos) in PARSED_BY_GO {
        assert_eq!(text.parse(), Ok(GoDuration::from_nanos(*nanos)), "{text:?}");
    }
}

#[test]
fn refuses_what_go_refuses() {
    for text in REFUSED_BY_GO {
        assert!(
            text.parse::<GoDuration>().is_err(),
            "{text:?} was read as {:?}",
            text.parse::<GoDuration>()
        );
    }
}

#[test]
fn prints_as_go_prints() {
    let cases: &[(i64, &str)] = &[
        (0, "0s"),
        (1, "1ns"),
        (-1, "-1ns"),
        (999, "999ns"),
        (1_100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (20 * MS, "20ms"),
        (MS + 1, "1.000001ms"),
        (3 * S + 300 * MS, "3.3s"),
        (30 * S, "30s"),
        (60 * S, "1m0s"),
        (4 * M + 5 * S, "4m5s"),
        (4 * M + 5 * S + MS, "4m5.001s"),
        (H, "1h0m0s"),
        (-(90 * S), "-1m30s"),
        (5 * H + 6 * M + 7 * S + MS, "5h6m7.001s"),
        (8 * M + 1, "8m0.000000001s"),
        (i64::MAX, "2562047h47m16.854775807s"),
        (i64::MIN, "-2562047h47m16.854775808s"),
    ];
    for (nanos, text) in cases {
        assert_eq!(GoDuration::from_nanos(*nanos).to_string(), *text);
    }
}

#[test]
fn an_error_says_what_is_wrong_and_what_to_write() {
    let message = |text: &str| text.parse::<GoDuration>().map_err(|error| error.to_string());
    assert_eq!(
        message("30"),
        Err("\"30\" is not a duration: a number has no unit; add one of ns, us, ms, s, m, h, such as 30s".into())
    );
    assert_eq!(
        message("1d"),
        Err("\"1d\" is not a duration: unknown unit \"d\"; use ns, us, ms, s, m or h".into())
    );
    assert!(
        "ten seconds"
            .parse::<GoDuration>()
            .is_err_and(|error| error.to_string().contains("a number is missing"))
    );
    assert_eq!("-".parse::<GoDuration>(), Err(DurationError::Empty));
    assert!(
        "3000000h"
            .parse::<GoDuration>()
            .is_err_and(|error| error.to_string().contains("292 years"))
    );
}

#[test]
fn an_error_does_not_repeat_a_long_text() {
    let error = "é".repeat(1_000_000).parse::<GoDuration>().expect_err("no number");
    assert!(error.to_string().len() < 300, "{} bytes", error.to_string().len());
}

#[test]
fn json_is_the_text() {
    let read = |json: &str| serde_json::from_str::<GoDuration>(json);
    assert_eq!(read("\"1m30s\"").expect("valid"), GoDuration::from_secs(90));
    assert_eq!(
        serde_json::to_string(&GoDuration::from_secs(90)).expect("writable"),
        "\"1m30s\""
    );
    for json in ["30", "1.5", "null", "true", "{}", "[]", "\"\"", "\"30\""] {
        assert!(read(json).is_err(), "{json}");
    }
    assert!(
        read("30")
            .expect_err("a number")
            .to_string()
            .contains("such as \"30s\"")
    );
}

#[test]
fn only_negative_durations_have_no_standard_form() {
    assert_eq!(GoDuration::from_secs(1).to_std(), Some(Duration::from_secs(1)));
    assert_eq!(
        GoDuration::from_secs(u32::MAX).to_std(),
        Some(Duration::from_secs(u32::MAX.into()))
    );
    assert_eq!(GoDuration::from_nanos(0).to_std(), Some(Duration::ZERO));
    assert_eq!(GoDuration::from_nanos(-1).to_std(), None);
}

proptest! {
    #[test]
    fn a_printed_duration_reads_back_the_same(nanos in any::<i64>()) {
        let duration = GoDuration::from_nanos(nanos);
        prop_assert_eq!(duration.to_string().parse(), Ok(duration));
    }

    #[test]
    fn a_small_printed_duration_reads_back_the_same(nanos in -100_000_000_000_i64..100_000_000_000) {
        let duration = GoDuration::from_nanos(nanos);
        prop_assert_eq!(duration.to_string().parse(), Ok(duration));
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        if let Ok(duration) = text.parse::<GoDuration>() {
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }
    }

    #[test]
    fn any_text_of_the_alphabet_is_read_or_refused(text in "[-+]?([0-9]{0,25}[.]?[0-9]{0,25}(ns|us|µs|ms|s|m|h|x)?){0,4}") {
        if let Ok(duration) = text.parse::<GoDuration>() {
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }
    }

    #[test]
    fn whole_units_add_up(hours in 0_i64..1000, minutes in 0_i64..1000, seconds in 0_i64..1000, millis in 0_i64..1000) {
        let text = format!("{hours}h{minutes}m{seconds}s{millis}ms");
        prop_assert_eq!(text.parse(), Ok(GoDuration::from_nanos(hours * H + minutes * M + seconds * S + millis * MS)));
    }
}
