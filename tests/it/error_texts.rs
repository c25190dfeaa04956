//! `docs/operate/TROUBLESHOOTING.md` begins with the exact messages that people search for. Each of them is brought about here, or by the test of
//! what it is about, and found where the page says, or is one of kubelet and kube-scheduler, which do not run here, or is quoted from a vendor
//! with repository, file and version.

pub mod attachments;
pub mod configs;
mod controller_manager;
mod identities;
pub mod index;

use std::collections::BTreeSet;

use index::{Row, rows, vendor_rows};

/// All messages that a test brings about.
fn staged() -> Vec<&'static str> {
    [
        attachments::staged(),
        configs::staged(),
        controller_manager::staged(),
        identities::staged(),
    ]
    .concat()
}

fn duplicates<'t>(texts: impl IntoIterator<Item = &'t str>) -> Vec<&'t str> {
    let mut seen = BTreeSet::new();
    texts.into_iter().filter(|text| !seen.insert(*text)).collect()
}

/// Rows that nothing proves, and proofs without a row.
fn unproven(rows: &[Row], proofs: &[&str]) -> Vec<String> {
    let is_proven = |row: &&Row| !proofs.contains(&&*row.message);
    let rows_without = rows
        .iter()
        .filter(is_proven)
        .map(|row| format!("no test has {}", row.message));
    let has_no_row = |text: &&&str| !rows.iter().any(|row| row.message == **text);
    let proofs_without = proofs
        .iter()
        .filter(has_no_row)
        .map(|text| format!("the index has no {text}"));
    rows_without.chain(proofs_without).collect()
}

#[test]
fn every_message_of_the_index_is_staged_or_of_the_nodes_side() {
    let (mut rows, staged) = (rows(), staged());
    let is_elsewhere = |row: &Row| {
        ["kubelet, ", "kube-scheduler, "]
            .iter()
            .any(|who| row.cells[0].starts_with(who))
    };
    rows.retain(|row| !is_elsewhere(row));
    assert_eq!(unproven(&rows, &staged), Vec::<String>::new());
    assert_eq!(duplicates(staged.iter().copied()), Vec::<&str>::new());
    assert!(staged.len() >= 18, "{} messages are staged", staged.len());
}

#[test]
fn a_message_without_proof_and_a_proof_without_row_are_found() {
    let row = |message: &str| Row {
        message: message.to_owned(),
        cells: Vec::new(),
    };
    let found = unproven(&[row("a"), row("b <name>")], &["a", "c"]);
    assert_eq!(found, ["no test has b <name>", "the index has no c"]);
    assert_eq!(duplicates(["a", "b", "a"]), ["a"]);
}

/// Each row says where the message comes from, what it means, which command says more, and what to do.
#[test]
fn every_row_of_the_index_is_complete() {
    for row in rows() {
        let [from, meaning, more, fix] = row.cells.as_slice() else {
            panic!("not five cells: {row:?}");
        };
        assert!(
            [from, meaning, fix].iter().all(|cell| !cell.is_empty()) && more.contains('`'),
            "{row:?}"
        );
    }
}

/// Quotes cannot be brought about without the vendor's cluster: they name where they are, so that anybody can look.
#[test]
fn every_quote_of_a_vendor_has_its_source() {
    let rows = vendor_rows();
    assert!(rows.len() >= 5, "only {} quotes", rows.len());
    for row in rows {
        let [source, meaning, more, fix] = row.cells.as_slice() else {
            panic!("not five cells: {row:?}");
        };
        let parts: Vec<&str> = source.split_whitespace().collect();
        let [repository, file, commit] = parts.as_slice() else {
            panic!("not repository, file, commit: {row:?}");
        };
        let is_commit = commit.len() == 12 && commit.chars().all(|letter| letter.is_ascii_hexdigit());
        assert!(
            repository.split('/').count() == 2 && file.contains(".go") && is_commit,
            "{row:?}"
        );
        assert!(!meaning.is_empty() && more.contains('`') && !fix.is_empty(), "{row:?}");
    }
}
