//! Runs the model checker: the worlds of CI and the wrong operators, or with `--large` the large worlds.

#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use std::process::ExitCode;

use csi_attacher_model_check::{histories, report};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let given = |word: &str| arguments.iter().find_map(|argument| argument.strip_prefix(word));
    let print = |line: &str| println!("{line}");
    if has("--histories") {
        let number = |word: &str, default| given(word).map_or(Some(default), |text| text.parse().ok());
        let (Some(seed), Some(count)) = (number("--seed=", 1), number("--count=", 100_000)) else {
            return ExitCode::FAILURE;
        };
        return code(histories::played(seed, count, &print));
    }
    let (large, only) = (has("--large"), given("--only="));
    let explored = has("--mutants") || report::worlds(large, only, &print);
    let is_with_wrong_ones = (!large && only.is_none()) || has("--mutants");
    code((!is_with_wrong_ones || report::wrong_operators(&print)) && explored)
}

fn code(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
