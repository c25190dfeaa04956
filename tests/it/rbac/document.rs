//! The table of the rights in docs/reference/RBAC.md is that of the scenarios.

use std::fmt::Write as _;

use super::{other, rendered, row_of};
use crate::support::Result;
use crate::support::prometheus::of_repository;

const BEGIN: &str = "<!-- The table is written by `make rbac-docs`. -->\n";
const END: &str = "<!-- End of the table. -->\n";

fn table() -> Result<String> {
    let mut table =
        "\n| role | API group | resource | verb | what for | proven by |\n|---|---|---|---|---|---|\n".to_owned();
    for right in rendered()? {
        let row = row_of(&right).ok_or_else(|| other(format!("nothing needs {right}")))?;
        let group = if right.group.is_empty() { "core" } else { &right.group };
        writeln!(
            table,
            "| {} | {group} | `{}` | `{}` | {} | `{}` |",
            right.scope, right.resource, right.verb, row.purpose, row.name
        )
        .map_err(|error| other(error.to_string()))?;
    }
    table.push('\n');
    Ok(table)
}

#[test]
fn the_document_has_every_right() -> Result<()> {
    let path = of_repository("docs/reference/RBAC.md");
    let text = std::fs::read_to_string(&path)?;
    let (head, rest) = text
        .split_once(BEGIN)
        .ok_or_else(|| other("the table has no beginning"))?;
    let (_, tail) = rest.split_once(END).ok_or_else(|| other("the table has no end"))?;
    let wanted = [head, BEGIN, &table()?, END, tail].concat();
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        return std::fs::write(&path, wanted).map_err(|error| other(error.to_string()));
    }
    assert!(
        text == wanted,
        "docs/reference/RBAC.md is out of date; run `make rbac-docs`"
    );
    Ok(())
}
