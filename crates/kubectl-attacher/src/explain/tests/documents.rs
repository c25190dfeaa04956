//! The page about the plugin has each case, with its verdict and meaning.

use crate::explain::Case;

#[test]
fn the_page_has_each_case() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/KUBECTL-ATTACHER.md");
    let page = std::fs::read_to_string(path).unwrap();
    let rows: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 2)
        .collect();
    for case in Case::ALL {
        let row = format!(
            "| `{}` | {:?} | {} |",
            case.as_str(),
            case.verdict(),
            case.meaning().trim()
        );
        assert!(
            rows.contains(&row.as_str()),
            "docs/operate/KUBECTL-ATTACHER.md lacks: {row}"
        );
    }
    let cases = rows.iter().filter(|row| {
        ["Healthy", "InProgress", "Unknown", "Blocked"]
            .iter()
            .any(|word| row.contains(&format!("| {word} |")))
    });
    assert_eq!(cases.count(), Case::ALL.len(), "a case of the page is none");
}
