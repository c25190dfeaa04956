//! Tables of text for people.

/// Rows below a header, in columns two spaces apart, each as wide as its widest cell. No line ends in spaces.
pub fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
        let cells = cells.chain(header.get(column).copied());
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let header = header.iter().map(ToString::to_string).collect();
    let mut text = String::new();
    for row in std::iter::once(&header).chain(rows) {
        let cells: Vec<String> = widths
            .iter()
            .zip(row)
            .map(|(width, cell)| format!("{cell:width$}"))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::render;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = render(
            &["NAME", "NODE", "TOOK"],
            &[row(["a", "node-é", "1 s"]), row(["long-name", "", ""])],
        );
        assert_eq!(text, "NAME       NODE    TOOK\na          node-é  1 s\nlong-name\n");
    }
}
