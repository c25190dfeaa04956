//! The conformance suite's reading of `ATTACHER_CMD`; a test target without the usual harness cannot hold tests itself.

#[path = "../conformance/command.rs"]
mod command;

use command::{Template, TemplateError};

#[test]
fn a_command_line_is_split_as_by_a_shell() {
    for (line, words) in [
        ("a b  c", vec!["a", "b", "c"]),
        ("'a b' \"c 'd'\"", vec!["a b", "c 'd'"]),
        (r#"a\ b "c\"d" 'e\f'"#, vec!["a b", "c\"d", r"e\f"]),
        ("--x='' y", vec!["--x=", "y"]),
        ("$HOME *", vec!["$HOME", "*"]),
    ] {
        assert_eq!(Template::parse(line).unwrap(), Template::of(words), "{line}");
    }
    assert_eq!(Template::parse("  "), Err(TemplateError::Empty));
    assert_eq!(Template::parse("a 'b"), Err(TemplateError::Unclosed('\'')));
    assert!(TemplateError::Unclosed('"').to_string().contains('"'));
}

#[test]
fn placeholders_are_filled_and_flags_come_last_or_where_they_are_wanted() {
    let values = [("{socket}", "/s s".to_owned()), ("{kubeconfig}", "/k".to_owned())];
    let flags = ["--a=1".to_owned(), "--b".to_owned()];
    let fill = |line: &str| Template::parse(line).unwrap().fill(&values, &flags);
    assert_eq!(
        fill("x --csi-address={socket}"),
        ["x", "--csi-address=/s s", "--a=1", "--b"]
    );
    assert_eq!(fill("x {flags} {kubeconfig}"), ["x", "--a=1", "--b", "/k"]);
}
