//! Tables of decisions, as lines of text: what is decided, and under it the worlds in which it is.

use std::collections::BTreeSet;

use crate::provision::ProvisionerSecretState;

/// Plays a table, and says how many worlds it has. A line with ` | ` is a world: its name, which begins with its rule,
/// and the words for what is so in it, in the order in which it came about. A line that begins with `//` is a remark;
/// any other one is what is decided in the worlds under it, or how that begins, with `...` at its end.
///
/// `change` makes what a word says of a world that begins as `begin`, and `decide` says what is decided in it.
pub fn play<World>(
    table: &'static str,
    begin: fn() -> World,
    change: fn(World, &'static str) -> World,
    decide: fn(&World) -> String,
) -> usize {
    let mut names = BTreeSet::new();
    let (mut decided, mut is_played) = ("", true);
    let lines = table.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with("//")) {
        let Some((name, words)) = line.split_once(" | ") else {
            assert!(std::mem::replace(&mut is_played, false), "no world under {decided}");
            decided = line;
            continue;
        };
        is_played = true;
        assert!(names.insert(name), "a name is used twice: {name}");
        let world = words.split(", ").fold(begin(), change);
        let found = decide(&world);
        match decided.strip_suffix("...") {
            Some(begin) => assert!(found.starts_with(begin), "{name}: {found}"),
            None => assert_eq!(found, decided, "{name}"),
        }
    }
    assert!(is_played && !names.is_empty(), "no world under {decided}");
    names.len()
}

/// The Secret that is `missing`, say.
pub fn secret_state(word: &str) -> ProvisionerSecretState {
    match word {
        "loaded" => ProvisionerSecretState::Loaded,
        "missing" => ProvisionerSecretState::Missing,
        "not loaded" => ProvisionerSecretState::NotLoaded,
        "unreadable" => ProvisionerSecretState::Unreadable,
        _ => panic!("no such Secret: {word}"),
    }
}
