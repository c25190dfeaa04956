//! What `list` and `drivers` print: rows, and what could not be read.

use serde::Serialize;

use crate::cli::TableOutput;
use crate::error::Result;
use crate::observed::Gap;
use crate::output::{self, Table, Text};

/// Rows of a kind, as they are serialised.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listing<T> {
    schema: &'static str,
    pub(super) items: Vec<T>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) gaps: Vec<Gap>,
}

impl<T: Serialize> Listing<T> {
    pub(super) fn new(schema: &'static str, items: Vec<T>, gaps: Vec<Gap>) -> Self {
        Self { schema, items, gaps }
    }

    /// The form that was asked for. `name` is the line of an item that has a name, `table` has more columns if it is wide, and `nothing`
    /// is said in the place of one without rows.
    pub(super) fn text(
        &self,
        form: Option<TableOutput>,
        name: impl Fn(&T) -> Option<String>,
        table: impl FnOnce(&[T], bool) -> Table,
        nothing: &str,
    ) -> Result<Text> {
        match form {
            Some(TableOutput::Json) => output::json(self),
            Some(TableOutput::Yaml) => output::yaml(self),
            Some(TableOutput::Name) => {
                let mut text = Text::default();
                for name in self.items.iter().filter_map(name) {
                    text.line(&name);
                }
                Ok(text)
            }
            None | Some(TableOutput::Wide) => {
                let table = table(&self.items, form == Some(TableOutput::Wide));
                let mut text = if table.is_empty() {
                    Text::of(nothing)
                } else {
                    table.text(true)
                };
                text.not_seen(&self.gaps);
                Ok(text)
            }
        }
    }
}
