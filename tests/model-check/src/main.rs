//! Runs the model checker: the worlds of CI and the wrong operators, or with `--large` the large worlds.

#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use std::process::ExitCode;

use csi_attacher_model_check::core::{Setting, worlds};
use csi_attacher_model_check::{histories, lease, provision, report};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let only = arguments.iter().find_map(|argument| argument.strip_prefix("--only="));
    let large = has("--large");
    let settings: Vec<Setting> = if large { worlds::large() } else { worlds::small() };
    let wanted = |setting: &Setting| only.is_none_or(|only| setting.name.contains(only));
    let settings: Vec<Setting> = settings.into_iter().filter(wanted).collect();
    let threads = if large {
        1
    } else {
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
    };
    let print = |line: &str| println!("{line}");
    if has("--histories") {
        let number = |word: &str, default| {
            let given = arguments.iter().find_map(|argument| argument.strip_prefix(word));
            given.map_or(Some(default), |text| text.parse().ok())
        };
        let (Some(seed), Some(count)) = (number("--seed=", 1), number("--count=", 100_000)) else {
            return ExitCode::FAILURE;
        };
        return if histories::played(seed, count, &print) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    let mut is_good = true;
    if !has("--mutants") {
        is_good &= report::explored(&settings, report::limits(large), threads, &print);
        let leases = lease::settings(large);
        let leases: Vec<_> = leases
            .into_iter()
            .filter(|lease| only.is_none_or(|only| lease.name.contains(only)))
            .collect();
        is_good &= report::leases(&leases, report::limits(large), threads, &print);
        let provisioners: Vec<_> = provision::worlds(large)
            .into_iter()
            .filter(|world| only.is_none_or(|only| world.name.contains(only)))
            .collect();
        is_good &= report::provisioners(&provisioners, report::limits(large), threads, &print);
    }
    if (!large && only.is_none()) || has("--mutants") {
        is_good &= report::wrong_operators(threads, &print);
        is_good &= report::wrong_leaders(threads, &print);
        is_good &= report::wrong_provisioners(threads, &print);
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
