//! The lines that make a tree of text.

/// What is written in front of a span and of the lines below it.
#[derive(Default)]
pub struct Edge {
    /// In front of its first line.
    pub own: String,
    /// In front of the others.
    pub below: String,
}

impl Edge {
    /// That of a span below this one.
    #[must_use]
    pub fn child(&self, is_last: bool) -> Self {
        let (own, below) = if is_last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        Self {
            own: format!("{}{own}", self.below),
            below: format!("{}{below}", self.below),
        }
    }
}
