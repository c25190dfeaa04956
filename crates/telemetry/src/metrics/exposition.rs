//! From OpenMetrics to the classic text format (version 0.0.4).
//!
//! prometheus-client writes OpenMetrics only. The classic format names a counter's family with its `_total`, knows
//! neither `# UNIT` nor `# EOF`, and Go clients spell bucket bounds `1` and `1e-08` where OpenMetrics has `1.0` and
//! `1e-8`; queries on `le` depend on that. It has no exemplars, nor the type `unknown`. Input is this program's own output.

use std::borrow::Cow;

/// The same samples in the classic format.
pub(super) fn to_classic(openmetrics: &str) -> String {
    let mut classic = String::with_capacity(openmetrics.len());
    let mut help = None;
    for line in openmetrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // Whether the name needs a suffix is known from the TYPE line that follows.
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let suffix = if kind == "counter" { "_total" } else { "" };
            // A counter whose family could not be called one ([`super::table::SuffixedCounter`]).
            let kind = if kind == "unknown" { "counter" } else { kind };
            if let Some((_, help)) = help.take() {
                push(&mut classic, &["# HELP ", name, suffix, " ", help]);
            }
            push(&mut classic, &["# TYPE ", name, suffix, " ", kind]);
        } else if !line.starts_with('#') {
            push_sample(&mut classic, without_exemplar(line));
        }
    }
    classic
}

fn push(text: &mut String, parts: &[&str]) {
    text.extend(parts.iter().copied());
    text.push('\n');
}

/// A sample without what stands behind its value. A label's value may hold anything, also what begins an exemplar; it
/// ends at the first quote that is not escaped.
fn without_exemplar(line: &str) -> &str {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'#' if !quoted => return line[..at].trim_end(),
            b'"' if !escaped => quoted = !quoted,
            _ => {}
        }
        escaped = quoted && byte == b'\\' && !escaped;
    }
    line
}

/// The bound stands first in the labels of a bucket, where no label value can be mistaken for it.
fn push_sample(classic: &mut String, line: &str) {
    const BOUND: &str = "_bucket{le=\"";
    let bucket = line.split_once(BOUND).filter(|(name, _)| !name.contains('{'));
    match bucket.and_then(|(name, rest)| Some((name, rest.split_once('"')?))) {
        Some((name, (bound, rest))) => push(classic, &[name, BOUND, &go_bound(bound), "\"", rest]),
        None => push(classic, &[line]),
    }
}

/// A bucket bound as Go formats it: an exponent of two digits below 1e-4, and no fraction that is zero.
fn go_bound(bound: &str) -> Cow<'_, str> {
    if let Some(whole) = bound.strip_suffix(".0") {
        return whole.into();
    }
    let Some(small) = bound.parse::<f64>().ok().filter(|value| *value > 0.0 && *value < 1e-4) else {
        return bound.into();
    };
    let text = format!("{small:e}");
    match text.split_once("e-") {
        Some((mantissa, exponent)) if exponent.len() == 1 => format!("{mantissa}e-0{exponent}").into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_exemplars_and_label_values_are_left_alone() {
        let exemplar = "# {trace_id=\"aa\",span_id=\"bb\"} 0.5 1700000000.0";
        for (sample, expected) in [
            ("x_bucket{le=\"1.0\",a=\"b\"} 1", "x_bucket{le=\"1\",a=\"b\"} 1\n"),
            ("x_bucket{le=\"1.0\",a=\" # {\"} 1", "x_bucket{le=\"1\",a=\" # {\"} 1\n"),
            ("x_sum{a=\"\\\"} # {\\\\\"} 1.5", "x_sum{a=\"\\\"} # {\\\\\"} 1.5\n"),
        ] {
            assert_eq!(to_classic(&format!("{sample}\n")), expected);
            assert_eq!(to_classic(&format!("{sample} {exemplar}\n")), expected);
        }
    }

    #[test]
    fn an_unknown_family_is_a_counter() {
        let unknown = "# HELP f_total All.\n# TYPE f_total unknown\nf_total{a=\"b\"} 3\n";
        let counter = "# HELP f_total All.\n# TYPE f_total counter\nf_total{a=\"b\"} 3\n";
        assert_eq!(to_classic(unknown), counter);
    }

    #[test]
    fn families_and_bounds_are_spelled_as_go_does() {
        let openmetrics = "# HELP adds All adds.\n# TYPE adds counter\nadds_total{name=\"_bucket{le=\\\"1.0\\\"\"} 1\n\
            # HELP d Time.\n# TYPE d histogram\n# UNIT d seconds\nd_sum 0.5\nd_bucket{le=\"1e-8\",x=\"1.0\"} 0\n\
            d_bucket{le=\"1.0\"} 1\nd_bucket{le=\"2.5\"} 1\nd_bucket{le=\"+Inf\"} 1\n# EOF\n";
        let expected = "# HELP adds_total All adds.\n# TYPE adds_total counter\n\
            adds_total{name=\"_bucket{le=\\\"1.0\\\"\"} 1\n\
            # HELP d Time.\n# TYPE d histogram\nd_sum 0.5\nd_bucket{le=\"1e-08\",x=\"1.0\"} 0\n\
            d_bucket{le=\"1\"} 1\nd_bucket{le=\"2.5\"} 1\nd_bucket{le=\"+Inf\"} 1\n";
        assert_eq!(to_classic(openmetrics), expected);
    }
}
