//! The picture of a trace at the top of the README: drawn from the tree of the same trace in TRACING, which is a real one. With `UPDATE=1` it is
//! written.

use crate::support::prometheus::of_repository;

const PICTURE: &str = "docs/operate/slow-attach.svg";
const PAGE: &str = "docs/operate/TRACING.md";
/// The time line of the tree, in characters.
const COLUMNS: f64 = 32.0;

/// A span of the tree.
#[derive(Debug, PartialEq)]
struct Bar {
    depth: usize,
    name: String,
    failed: bool,
    took: String,
    seconds: f64,
    /// Where it starts on the time line, as a part of it.
    start: f64,
    /// What the driver said.
    message: Option<String>,
}

/// The first block of a page that begins with `trace`.
fn tree(page: &str) -> &str {
    let (_, block) = page.split_once("```text\ntrace ").expect("there is a trace");
    block.split_once("\n```").expect("it ends").0
}

fn bars(tree: &str) -> Vec<Bar> {
    // The root is as long as the time line.
    let root = tree.lines().find(|line| line.contains('█')).expect("there is a root");
    let margin = root.chars().take_while(|one| *one != '█').count();
    let mut bars: Vec<Bar> = Vec::new();
    for line in tree.lines().skip(2) {
        let left: String = line.chars().take(margin).collect();
        let edge = left.chars().take_while(|one| "│├└─ ".contains(*one)).count();
        let text: String = left.chars().skip(edge).collect();
        match text.split_whitespace().collect::<Vec<_>>().as_slice() {
            [name @ .., value, unit @ ("ms" | "s")] if value.parse::<f64>().is_ok() => {
                let value_of: f64 = value.parse().unwrap_or_default();
                let blank = line.chars().skip(margin).take_while(|one| *one == ' ').count();
                let name = name.join(" ");
                bars.push(Bar {
                    depth: edge / 3,
                    failed: name.ends_with(" FAILED"),
                    name: name.trim_end_matches(" FAILED").to_owned(),
                    took: format!("{value} {unit}"),
                    seconds: if *unit == "s" { value_of } else { value_of / 1e3 },
                    start: f64::from(u32::try_from(blank).unwrap_or_default()) / COLUMNS,
                    message: None,
                });
            }
            _ => {
                let said = line.split('"').nth(1).map(str::to_owned);
                if let Some(last) = bars.last_mut() {
                    last.message = last.message.take().or(said);
                }
            }
        }
    }
    // What happens inside of the API server would hide what matters, and an attempt says the same as its call.
    bars.retain(|bar| !bar.name.starts_with('['));
    for bar in &mut bars {
        if !bar.name.starts_with("csi.") {
            bar.message = None;
        }
    }
    bars
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

const ROW: f64 = 26.0;
/// Where the time line begins, and how long it is.
const LEFT: f64 = 520.0;
const WIDTH: f64 = 430.0;

/// A time line as those of Jaeger: names at the left, bars at the right; what failed is red.
fn svg(bars: &[Bar]) -> String {
    let total = bars.first().map_or(1.0, |root| root.seconds);
    let messages = bars.iter().filter(|bar| bar.message.is_some()).count();
    let rows = f64::from(u32::try_from(bars.len() + messages).unwrap_or_default());
    let height = 40.0 + ROW * rows + 8.0;
    let mut lines = vec![
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1040 {height}\" width=\"1040\" height=\"{height}\" \
             font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" font-size=\"12\" role=\"img\" \
             aria-label=\"Trace of an attach\">"
        ),
        format!("<rect width=\"1040\" height=\"{height}\" fill=\"#ffffff\"/>"),
    ];
    for part in 0..=4 {
        let part = f64::from(part) / 4.0;
        let x = LEFT + WIDTH * part;
        lines.push(format!("<path d=\"M{x} 28V{}\" stroke=\"#d8dee4\"/>", height - 8.0));
        lines.push(format!(
            "<text x=\"{x}\" y=\"20\" fill=\"#57606a\" text-anchor=\"middle\">{:.1} s</text>",
            total * part
        ));
    }
    let mut y = 40.0;
    for bar in bars {
        y += draw(&mut lines, bar, total, y);
    }
    lines.push("</svg>\n".to_owned());
    lines.join("\n")
}

/// Draws a span at this height, and answers how much of it that takes.
fn draw(lines: &mut Vec<String>, bar: &Bar, total: f64, y: f64) -> f64 {
    let indent = 12.0 + 16.0 * f64::from(u32::try_from(bar.depth).unwrap_or_default());
    let (ink, fill) = if bar.failed {
        ("#b42318", "#d92d20")
    } else {
        ("#1f2328", "#1a7f8e")
    };
    let weight = if bar.depth == 0 { " font-weight=\"bold\"" } else { "" };
    lines.push(format!(
        "<text x=\"{indent}\" y=\"{}\" fill=\"{ink}\"{weight}>{}</text>",
        y + 16.0,
        escaped(&bar.name)
    ));
    let (x, width) = (LEFT + WIDTH * bar.start, (WIDTH * bar.seconds / total).max(2.0));
    lines.push(format!(
        "<rect x=\"{x:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"14\" rx=\"2\" fill=\"{fill}\"/>",
        y + 5.0
    ));
    lines.push(format!(
        "<text x=\"{:.1}\" y=\"{}\" fill=\"#57606a\">{}</text>",
        x + width + 6.0,
        y + 16.0,
        bar.took
    ));
    let Some(message) = &bar.message else { return ROW };
    lines.push(format!(
        "<text x=\"{}\" y=\"{}\" fill=\"#b42318\">{}</text>",
        indent + 16.0,
        y + ROW + 14.0,
        escaped(message)
    ));
    2.0 * ROW
}

#[test]
fn the_picture_is_that_of_the_trace() {
    let page = std::fs::read_to_string(of_repository(PAGE)).expect("the page can be read");
    let bars = bars(tree(&page));
    assert!(bars.len() >= 6 && bars[0].depth == 0, "{bars:?}");
    assert_eq!(bars.iter().filter(|bar| bar.message.is_some()).count(), 2, "{bars:?}");
    let drawn = svg(&bars);
    let path = of_repository(PICTURE);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &drawn).expect("it can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        drawn == committed,
        "{PICTURE} is not drawn from {PAGE}; UPDATE=1 writes it"
    );
}

#[test]
fn a_tree_is_read() {
    let line = |left: &str, bar: &str| format!("{left:<28}{bar}\n");
    let tree = [
        "0a1b  4 spans\n".to_owned(),
        line("", "0  8.00 s"),
        line("root                8.00 s", &"█".repeat(32)),
        line("├─ a FAILED         2.00 s", "████████"),
        "│  \"not its own\"\n".to_owned(),
        line("├─ csi.v1.C/P FAILED  1.0 s", "████"),
        "│     \"no <disk>\"\n".to_owned(),
        line("└─ b                9.0 ms", "        ▏"),
        line("   └─ [etcd]        1.0 ms", "        ▏"),
    ]
    .concat();
    let read = bars(&tree);
    let names: Vec<(&str, usize, bool)> = read.iter().map(|bar| (&*bar.name, bar.depth, bar.failed)).collect();
    assert_eq!(
        names,
        [
            ("root", 0, false),
            ("a", 1, true),
            ("csi.v1.C/P", 1, true),
            ("b", 1, false)
        ]
    );
    assert_eq!(
        (read[1].message.as_deref(), read[2].message.as_deref()),
        (None, Some("no <disk>"))
    );
    assert!(
        (read[3].seconds - 0.009).abs() < 1e-9 && (read[3].start - 0.25).abs() < 1e-9,
        "{read:?}"
    );
    let drawn = svg(&read);
    assert!(
        drawn.contains("no &lt;disk&gt;") && !drawn.contains("[etcd]"),
        "{drawn}"
    );
}
