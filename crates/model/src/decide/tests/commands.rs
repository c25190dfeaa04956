//! What is shown to be pasted into a shell.

use crate::decide::{command_word, is_plain_command};

const HOSTILE: [&str; 14] = [
    "x;touch /tmp/pwn",
    "$(id)",
    "`id`",
    "a|b",
    "a\nb",
    "a' -p '{}",
    "x -p '$(id)'",
    "'",
    "<x",
    "a&b",
    "\u{1b}[31m",
    "n --server=https://evil",
    "-n",
    "~",
];

#[test]
fn a_word_that_means_something_to_a_shell_is_not_put_into_a_command() {
    for word in ["id0", "i-0abc", "form-1/id", "a,b", "vol@zone:1=x", &"x".repeat(160)] {
        assert_eq!(command_word(word, "ID"), word);
    }
    for word in HOSTILE.into_iter().chain(["", "ä", &"x".repeat(161)]) {
        assert_eq!(command_word(word, "ID"), "ID", "{word:?}");
    }
}

#[test]
fn a_command_with_a_name_that_means_something_to_a_shell_is_not_plain() {
    let flags = ["--namespace", "--type=merge"];
    for command in [
        "kubectl describe pvc data-0 --namespace web",
        "kubectl patch atc ebs --type=merge -p '{\"spec\":{\"suspend\":false}}'",
    ] {
        assert!(is_plain_command(command, &flags), "{command}");
        assert!(!is_plain_command(command, &[]), "{command}");
    }
    for name in HOSTILE {
        let command = format!("kubectl describe pvc {name} --namespace default");
        assert!(!is_plain_command(&command, &flags), "{command}");
    }
}
