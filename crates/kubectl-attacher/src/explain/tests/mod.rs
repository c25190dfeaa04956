//! One row for each case: what is observed, and what is said of it.

#![allow(
    clippy::too_many_lines,
    clippy::needless_pass_by_value,
    clippy::semicolon_if_nothing_returned,
    clippy::unnecessary_wraps,
    reason = "tables, whose rows are made in place"
)]

mod answers;
mod attach;
pub(crate) mod builders;
mod detach;
mod documents;
mod holders;
mod releases;
mod rows;
