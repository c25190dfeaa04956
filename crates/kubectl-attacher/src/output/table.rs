//! Tables in the form of kubectl: columns by spaces, headers in capitals.

use std::fmt::Write as _;

use super::Text;

#[derive(Clone, Debug)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(header: &[&'static str]) -> Self {
        Self {
            header: header.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. What has no value is shown as `<none>`, as kubectl does.
    pub fn row(&mut self, cells: Vec<Option<String>>) {
        let cells = cells
            .into_iter()
            .map(|cell| cell.unwrap_or_else(|| "<none>".to_owned()));
        self.rows.push(cells.collect());
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn text(&self, with_header: bool) -> Text {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            let header = self.header.get(column).map_or(0, |header| header.len());
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(header)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let header: Vec<String> = self.header.iter().map(|&header| header.to_owned()).collect();
        let header = with_header.then_some(&header);
        let mut text = Text::default();
        for row in header.into_iter().chain(&self.rows) {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                // Writing to a String cannot fail.
                let _written = write!(line, "{cell:<width$}   ");
            }
            text.line(line.trim_end());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn a_cell_forges_no_line_and_no_colour() {
        let mut table = Table::new(&["NAME", "ERROR"]);
        table.row(vec![Some("a".to_owned()), Some("\u{1b}[31mred\r\nFAKE  ok".to_owned())]);
        assert_eq!(table.text(false).as_str(), "a       [31mred  FAKE  ok\n");
    }
}
