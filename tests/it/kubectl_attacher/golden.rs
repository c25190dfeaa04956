//! Answers in files. What differs from run to run is replaced: times, ages, hashes, UIDs, replicas, folders.

use std::path::Path;

/// Compares with `golden/NAME.txt`; with UPDATE=1 it is written.
pub fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/it/kubectl_attacher/golden/{name}.txt"));
    let shown = normalised(text);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, shown).unwrap();
        return;
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(shown, known, "{} differs; UPDATE=1 writes it", path.display());
}

/// The text with what differs from run to run replaced.
pub fn normalised(text: &str) -> String {
    text.lines()
        .map(|line| format!("{}\n", words(line)))
        .collect::<Vec<_>>()
        .concat()
}

fn words(line: &str) -> String {
    // What a command is given is the same in each run.
    if line.contains(" kubectl patch ") {
        return line.to_owned();
    }
    let mut out = String::new();
    for word in line.split_inclusive([' ', '(', ')', ',', '"']) {
        let end = word.trim_end_matches([' ', '(', ')', ',', '"', ';', ':', '.']);
        out.push_str(&replaced(end));
        out.push_str(&word[end.len()..]);
    }
    let out = numbers_after(&numbers_after(&out, "attempt: "), "attempt ");
    // How long something has waited by then is up to the machine; the words are tested where they are made.
    without_neighbours(&out.replace("the longest for at least <age>", "the longest for less than <age>"))
}

/// Which sockets are beside one that is missing is up to the tests that run at the same time.
fn without_neighbours(text: &str) -> String {
    let hint = text.split_once(" its directory has ");
    let hint = hint.and_then(|(before, after)| Some((before, after.split_once(" else: ")?.1)));
    hint.map_or_else(|| text.to_owned(), |(before, after)| format!("{before} {after}"))
}

fn replaced(word: &str) -> String {
    if let Some(hash) = word.strip_prefix("csi-")
        && hash.len() == 64
    {
        return "csi-<hash>".to_owned();
    }
    if word.len() == 20 && word.ends_with('Z') && word.as_bytes()[10] == b'T' {
        return "<time>".to_owned();
    }
    if is_uid(word) {
        return "<uid>".to_owned();
    }
    if is_age(word) {
        return "<age>".to_owned();
    }
    if let Some(at) = word.find("/.tmp") {
        let rest = &word[at + 1..];
        let after = rest.find('/').map_or("", |end| &rest[end..]);
        return format!("<folder>{after}");
    }
    word.to_owned()
}

fn is_uid(word: &str) -> bool {
    word.len() == 36
        && word.chars().enumerate().all(|(at, c)| match at {
            8 | 13 | 18 | 23 => c == '-',
            _ => c.is_ascii_hexdigit(),
        })
}

/// `3s`, `2m5s`, `1h`, `4d3h`.
fn is_age(word: &str) -> bool {
    let mut digits = 0;
    for character in word.chars() {
        match character {
            '0'..='9' => digits += 1,
            's' | 'm' | 'h' | 'd' if digits > 0 => digits = 0,
            _ => return false,
        }
    }
    !word.is_empty() && digits == 0
}

/// Replaces the number after these words.
fn numbers_after(text: &str, lead: &str) -> String {
    let Some((before, after)) = text.split_once(lead) else {
        return text.to_owned();
    };
    let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    if end == 0 {
        return format!("{before}{lead}{}", numbers_after(after, lead));
    }
    format!("{before}{lead}<n>{}", &after[end..])
}

#[test]
fn what_differs_is_replaced() {
    let text = format!(
        "csi-{} since 2026-01-01T00:00:00Z, for 3m2s (4s ago) attempt: 7 (1s ago), in /tmp/.tmpAb1/x.sock",
        "a".repeat(64)
    );
    assert_eq!(
        normalised(&text),
        "csi-<hash> since <time>, for <age> (<age> ago) attempt: <n> (<age> ago), in <folder>/x.sock\n"
    );
    assert_eq!(
        normalised("waiting: 1, the longest for at least 2s; raise"),
        "waiting: 1, the longest for less than <age>; raise\n"
    );
    let hint = "its directory has a.sock, b.sock: if the driver's is among these, name it in spec.endpoint; else: ";
    assert_eq!(
        normalised(&format!("no such socket; {hint}is the driver running")),
        "no such socket; is the driver running\n"
    );
}

/// Blocks of the pages that show a golden file show all of it: its name is in a comment before the block.
#[test]
fn the_pages_show_what_is_printed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut shown = 0;
    for page in ["docs/operate/KUBECTL-ATTACHER.md", "README.md"] {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        for part in text.split("<!-- golden: ").skip(1) {
            let (name, rest) = part.split_once(" -->\n```console\n").unwrap();
            let (block, _) = rest.split_once("```\n").unwrap();
            let (command, output) = block.split_once('\n').unwrap();
            let known = root.join(format!("tests/it/kubectl_attacher/golden/{name}.txt"));
            assert_eq!(output, std::fs::read_to_string(known).unwrap(), "{page}: {name}");
            assert!(command.starts_with("$ kubectl attacher why "), "{page}: {command}");
            shown += 1;
        }
    }
    assert!(shown >= 6, "only {shown} blocks were found");
}

/// Somebody in a hurry pastes a command: none that an answer of `why` names deletes, taints or drains.
#[test]
fn no_answer_names_a_command_that_destroys() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/kubectl_attacher/golden");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let command = |line: &str| line.find("kubectl ").map(|at| line[at..].to_owned());
        for command in text.lines().filter_map(command) {
            count += 1;
            for word in [" delete", " taint", " drain", " replace", "--force", "finalizers"] {
                assert!(!command.contains(word), "{}: {command}", path.display());
            }
        }
    }
    assert!(count > 20, "{count}");
}
