//! Which errors of something that is tried again and again are told.

use std::fmt::Display;

/// So many different errors in a row are told. More of them differ in what nobody looks for, such as the port of a connection.
const MAX_TOLD: usize = 8;

/// The errors that were told since something last worked. Each is told once: a retry that fails alike is no news, also when two errors take
/// turns.
#[derive(Clone, Debug, Default)]
pub struct ToldErrors(Vec<String>);

impl ToldErrors {
    /// Whether an error is to be told. It counts as told from now on.
    pub fn is_news(&mut self, error: &impl Display) -> bool {
        let text = error.to_string();
        let is_news = self.0.len() < MAX_TOLD && !self.0.contains(&text);
        if is_news {
            self.0.push(text);
        }
        is_news
    }

    /// It works: the next error is news. Returns whether any was told before.
    pub fn end(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_told_once_until_it_works_again() {
        let mut told = ToldErrors::default();
        assert!(!told.end());
        for _ in 0..2 {
            let news = ["refused", "refused", "no answer", "refused", "no answer"].map(|error| told.is_news(&error));
            assert_eq!(news, [true, false, true, false, false]);
            assert!(told.end() && !told.end());
        }
        let told_of = (0..1_000).filter(|port| told.is_news(port)).count();
        assert_eq!(told_of, MAX_TOLD);
    }
}
