use super::*;

/// The rules of the OpenMetrics text format that a strict parser checks, line by line.
#[test]
fn the_exposition_keeps_the_rules_of_openmetrics() {
    let metrics = Metrics::default();
    record_everything(&metrics, "quote\"back\\slash\nline");
    metrics.rest_request("GET", "h", None, Duration::ZERO, None);
    let text = metrics.encode_openmetrics();
    assert!(text.ends_with("# EOF\n"));
    assert_eq!(text.matches("# EOF").count(), 1);
    assert!(text.contains("driver_name=\"quote\\\"back\\\\slash\\nline\""));
    let mut families = BTreeSet::new();
    let mut family = ("", "");
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split_once(' ').unwrap();
            assert!(families.insert(family.0), "{} is described twice", family.0);
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let allowed: &[&str] = match family.1 {
                "counter" => &["_total"],
                "gauge" | "unknown" => &[""],
                "histogram" => &["_bucket", "_sum", "_count"],
                other => panic!("type {other}"),
            };
            let suffix = name
                .strip_prefix(family.0)
                .unwrap_or_else(|| panic!("{line} is not of {}", family.0));
            assert!(allowed.contains(&suffix), "{line} in a {}", family.1);
            assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(families.len() >= 20, "{families:?}");
}
