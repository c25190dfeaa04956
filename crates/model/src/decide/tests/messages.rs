//! Texts for users: cut, on one line.

use proptest::prelude::*;

use crate::decide::{MAX_ERROR_BYTES, cut, plain};
use crate::objects::StringMap;

#[test]
fn a_publish_context_that_cannot_be_stored_is_a_failure() {
    let context = |bytes: usize| {
        StringMap::from(
            [("k".to_owned(), "x".repeat(bytes - 1))]
                .into_iter()
                .collect::<std::collections::BTreeMap<_, _>>(),
        )
    };
    assert!(crate::decide::check_publish_context(&context(256 * 1024)).is_ok());
    let failure = crate::decide::check_publish_context(&context(256 * 1024 + 1)).unwrap_err();
    assert!(failure.message.contains("262145 bytes"), "{failure:?}");
    assert_eq!(failure.code, None);
}

proptest! {
    #[test]
    fn a_cut_text_is_a_beginning_of_whole_characters(text in "\\PC{0,600}", limit in 0..2000_usize) {
        let kept = cut(&text, limit);
        prop_assert!(kept.len() <= limit && text.starts_with(kept));
        // No character is given up that had fitted.
        prop_assert!(kept.len() == text.len() || limit - kept.len() < 4);
        prop_assert!(cut(&text, MAX_ERROR_BYTES).len() <= MAX_ERROR_BYTES);
    }

    #[test]
    fn a_plain_text_has_no_control_characters_and_its_length_in_characters(text in any::<String>()) {
        let plain = plain(&text);
        prop_assert!(!plain.chars().any(char::is_control));
        prop_assert_eq!(plain.chars().count(), text.chars().count());
    }
}
