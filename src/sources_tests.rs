//! Rules for the sources that no compiler keeps.

use std::path::Path;

/// What gives the outside world away.
const FORBIDDEN: [&str; 8] = [
    "tokio",
    "kube::Client",
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "std::fs",
    "std::env",
    "async ",
];

/// What the supervisor decides. The decisions about objects are a crate, whose dependencies keep them pure.
#[test]
fn what_the_supervisor_decides_is_pure() {
    for file in ["src/supervisor/plan.rs", "src/supervisor/status.rs"] {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        for word in FORBIDDEN {
            assert!(!text.contains(word), "{file} uses {word}");
        }
    }
}

/// The texts of the functions of a name in a file, each from its signature to the brace that closes it.
fn functions<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let is_named = |line: &str| {
        let after = line.trim_start().split_once("fn ").map(|(_, after)| after);
        let after = after.and_then(|after| after.strip_prefix(name));
        after.is_some_and(|after| after.starts_with(['(', '<'])) && !line.trim_start().starts_with("//")
    };
    let mut found = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if is_named(line) {
            let indent = &line[..line.len() - line.trim_start().len()];
            let rest = &text[start..];
            let end = rest.find(&format!("\n{indent}}}\n")).unwrap_or(rest.len());
            found.push(&rest[..end]);
        }
        start += line.len();
    }
    found
}

/// What is wrong with the steps of a map: each is a function of a file, and calls the next unless a blank line is between.
fn wrong_steps(map: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut before: Option<(String, Vec<String>)> = None;
    for line in map.lines() {
        let Some((file, name)) = line.split_once(' ').map(|(file, name)| (file, name.trim())) else {
            before = None;
            continue;
        };
        let text = read(file).unwrap_or_default();
        let bodies: Vec<String> = functions(&text, name).into_iter().map(str::to_owned).collect();
        if bodies.is_empty() {
            wrong.push(format!("{file} has no function {name}"));
        }
        let calls = |body: &String| {
            let body = body.split_once('{').map_or("", |(_, body)| body);
            let is_word = |at: usize| {
                let edge =
                    |letter: Option<char>| !letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
                edge(body[..at].chars().next_back()) && edge(body[at + name.len()..].chars().next())
            };
            body.match_indices(name).any(|(at, _)| is_word(at))
        };
        if let Some((caller, _)) = before.as_ref().filter(|(_, bodies)| !bodies.iter().any(calls)) {
            wrong.push(format!("{caller} does not call {name}"));
        }
        before = Some((format!("{file} {name}"), bodies));
    }
    wrong
}

#[test]
fn the_maps_of_the_architecture_are_true() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/contribute/ARCHITECTURE.md")).unwrap();
    for (heading, least) in [("One attach, from the watch to the status", 30), ("One patch", 5)] {
        let (_, part) = document.split_once(&format!("## {heading}\n")).unwrap();
        let (_, part) = part.split_once("```\n").unwrap();
        let (map, _) = part.split_once("```").unwrap();
        let read = |file: &str| std::fs::read_to_string(root.join(file)).ok();
        assert_eq!(wrong_steps(map, read), Vec::<String>::new(), "{heading}");
        assert!(
            map.lines().filter(|line| !line.is_empty()).count() >= least,
            "{heading}"
        );
    }
}

/// The list is made by `make attach-map`, which not every machine can run.
#[test]
fn each_function_of_an_attach_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("docs/contribute/ARCHITECTURE.md")).unwrap();
    let (_, part) = document.split_once("## Every function of an attach\n").unwrap();
    let (text, part) = part.split_once("```\n").unwrap();
    let (list, _) = part.split_once("```").unwrap();
    let mut count = 0;
    for line in list.lines() {
        let (file, names) = line.split_once(' ').unwrap();
        let source = std::fs::read_to_string(root.join(file)).unwrap();
        for name in names.split_whitespace() {
            count += 1;
            assert!(!functions(&source, name).is_empty(), "{file} has no function {name}");
        }
    }
    let files = list.lines().count();
    assert!(text.contains(&format!("They are {count} functions in {files} files.")));
    assert!(count > 200);
}

#[test]
fn a_wrong_step_of_a_map_is_found() {
    let source = "fn first() {\n    second();\n}\nfn second() {\n    third_one();\n}\nfn third() {}\n";
    let of = |map| wrong_steps(map, |file| (file == "a.rs").then(|| source.to_owned()));
    assert_eq!(of("a.rs first\na.rs second\n\na.rs third\n"), Vec::<String>::new());
    assert_eq!(of("a.rs second\na.rs third\n"), ["a.rs second does not call third"]);
    assert_eq!(of("a.rs fourth\n"), ["a.rs has no function fourth"]);
    assert_eq!(of("b.rs first\n"), ["b.rs has no function first"]);
}

/// The keys of a record of the log in JSON that are not those of fields: a field of that name would be there twice. `message` is the text.
const TAKEN: [&str; 4] = ["message", "level", "target", "timestamp"];
/// What writes a record; `traced!` and `about!` hand on what they get.
const LOG_MACROS: [&str; 7] = [
    "trace!(", "debug!(", "info!(", "warn!(", "error!(", "traced!(", "about!(",
];

/// How many bytes the literal of a text or a letter has that is at the start; none where there is none.
fn literal_length(text: &str) -> Option<usize> {
    let quote = text.chars().next().filter(|letter| ['"', '\''].contains(letter))?;
    // A lifetime has no second quote.
    let is_lifetime = quote == '\'' && !text[1..].starts_with('\\') && text.chars().nth(2) != Some('\'');
    let mut is_escaped = false;
    let end = text[1..].char_indices().find(|(_, letter)| {
        let is_end = *letter == quote && !is_escaped;
        is_escaped = *letter == '\\' && !is_escaped;
        is_end
    });
    end.filter(|_| !is_lifetime).map(|(at, _)| at + 2)
}

/// The arguments of a macro up to the bracket that closes it.
fn arguments(text: &str) -> Vec<&str> {
    let (mut found, mut depth, mut start, mut at) = (Vec::new(), 0_usize, 0, 0);
    while let Some(letter) = text[at..].chars().next() {
        if let Some(length) = literal_length(&text[at..]) {
            at += length;
            continue;
        }
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => break,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
        at += letter.len_utf8();
    }
    found.push(text[start..at].trim());
    found
}

/// The fields of log macros that have the name of another key of the record.
fn taken_fields(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for name in LOG_MACROS {
        for (at, _) in source.match_indices(name) {
            let arguments = arguments(&source[at + name.len()..]);
            // What comes after the text are its values; without a text there may be a field of its name.
            let Some(text_at) = arguments.iter().position(|argument| argument.starts_with('"')) else {
                continue;
            };
            let fields = arguments[..text_at].iter().map(|argument| {
                let name = argument.split('=').next().unwrap_or_default();
                name.trim_start_matches(['%', '?']).trim()
            });
            found.extend(fields.filter(|field| TAKEN.contains(field)));
        }
    }
    found
}

/// The sources below a folder, but this one.
fn sources(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("sources_tests.rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<std::path::PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "crates"] {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 100);
    files
}

/// Whoever reads it elsewhere does not go by the clock of a simulation.
#[test]
fn one_file_reads_the_wall_clock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_of_tests = |file: &Path| {
        let ends = ["tests", "tests.rs", "_fixture.rs"];
        let parts = file.strip_prefix(root).unwrap().iter();
        parts
            .filter_map(|part| part.to_str())
            .any(|part| ends.iter().any(|end| part.ends_with(end)))
    };
    for file in all_sources() {
        if is_of_tests(&file) || file.ends_with("crates/base/src/clock.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for reader in ["Timestamp::now", "SystemTime::now", "Zoned::now"] {
            assert!(!code.contains(reader), "{} uses {reader}", file.display());
        }
    }
}

#[test]
fn no_field_of_the_log_has_the_name_of_another_key() {
    for file in all_sources() {
        let taken = taken_fields(&std::fs::read_to_string(&file).unwrap()).len();
        assert_eq!(taken, 0, "{} has fields named as one of {TAKEN:?}", file.display());
    }
}

#[test]
fn a_field_with_the_name_of_another_key_is_found() {
    let rows: [(&str, &[&str]); 7] = [
        ("warn!(config = &*name, message, \"cannot serve\");", &["message"]),
        (
            "traced!(warn, span, ?level, target = f(1, \"a\"), \"lost\")",
            &["level", "target"],
        ),
        ("error!(\n    %timestamp,\n    \"{}\",\n    3\n)", &["timestamp"]),
        ("warn!(driver, error = message, \"a, message, b\")", &[]),
        ("info!(target: \"a\", last = ',', \"{message}\", message = 3)", &[]),
        ("warn!(lease, message)", &[]),
        (
            "debug!(called = f(message), quote = \"\\\"message, \", letter = '\"', \"text\")",
            &[],
        ),
    ];
    for (source, taken) in rows {
        assert_eq!(taken_fields(source), taken, "{source}");
    }
}
