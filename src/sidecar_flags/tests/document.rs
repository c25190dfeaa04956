//! docs/install/DROP-IN.md tells of every flag, and of no other.

use std::collections::BTreeSet;

use crate::sidecar_flags::table;

const DOCUMENT: &str = include_str!("../../../docs/install/DROP-IN.md");

#[test]
fn the_document_has_a_row_for_each_flag() {
    let rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix("| `--"));
    let told: BTreeSet<&str> = rows.filter_map(|row| row.split(['`', ' ']).next()).collect();
    let there: BTreeSet<&str> = table::sorted().iter().map(|flag| flag.name).collect();
    assert_eq!(told, there);
}
