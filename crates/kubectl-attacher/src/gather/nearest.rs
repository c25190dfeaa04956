//! Names like one that does not exist.

/// How like a name has to be.
const MIN_SIMILARITY: f64 = 0.8;
/// How many are shown.
const MAX_NAMES: usize = 3;

/// The names that are most like another, the likest first.
pub fn nearest(wanted: &str, names: &[String]) -> Vec<String> {
    let mut scored: Vec<(f64, &String)> = names
        .iter()
        .map(|name| {
            let is_part = name.contains(wanted) || wanted.contains(name.as_str());
            let part = if is_part { 0.9 } else { 0.0 };
            (strsim::jaro_winkler(wanted, name).max(part), name)
        })
        .filter(|(score, _)| *score >= MIN_SIMILARITY)
        .collect();
    scored.sort_by(|(a, one), (b, other)| b.total_cmp(a).then_with(|| one.cmp(other)));
    let likest = scored.into_iter().take(MAX_NAMES);
    likest.map(|(_, name)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn the_likest_name_comes_first() {
        let names = ["web-0", "web-1", "database-0"].map(str::to_owned);
        assert_eq!(nearest("wep-0", &names), ["web-0"]);
        assert_eq!(nearest("database", &names), ["database-0"]);
        assert!(nearest("queue", &names).is_empty());
    }
}
