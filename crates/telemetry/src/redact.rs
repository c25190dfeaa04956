//! Names and volume IDs that are not to leave the process as they are: on spans a hash stands for each of them.
//!
//! The hash is stable, so that all spans about one volume can still be found by it: the first 16 hexadecimal digits of the
//! SHA-256 of the name, which `printf %s NAME | sha256sum` shows too. Secrets are none of its business: they never get here.

use std::borrow::Cow;

use aws_lc_rs::digest::{SHA256, digest};
use csi_attacher_model::decide::{MAX_ERROR_BYTES, cut_forms, plain};

use super::attribute::AttrValue;
use super::names::attr;

/// Names shorter than this are replaced in a text only where they stand alone: a node `a` is not every `a`.
const SHORTEST_ANYWHERE: usize = 4;

/// Texts shorter than this are cut nowhere, so that a word at their end is not what is left of a name. A cut on the boundary of a character
/// takes up to three bytes more.
const SHORTEST_CUT: usize = MAX_ERROR_BYTES - 3;

/// Attributes that are a name. A node ID is one: most drivers use the name of the node.
const NAMES: [&str; 9] = [
    attr::VOLUME_ATTACHMENT_NAME,
    attr::NODE_NAME,
    attr::PERSISTENT_VOLUME_NAME,
    attr::PERSISTENT_VOLUME_CLAIM_NAME,
    attr::NAMESPACE_NAME,
    attr::STORAGE_CLASS_NAME,
    attr::CSI_NODE_ID,
    // With local volumes the name of a node.
    attr::TOPOLOGY_FIRST,
    "va",
];

/// What stands for a name: 16 hexadecimal digits.
pub fn hash(text: &str) -> String {
    let digest = digest(&SHA256, text.as_bytes());
    let half = digest.as_ref().first_chunk().copied().unwrap_or_default();
    format!("{:016x}", u64::from_be_bytes(half))
}

/// What is replaced on the spans of one driver, and which values are known to occur in texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redaction {
    volume_id: bool,
    names: bool,
    /// Values and what stands for them, longest first.
    known: Vec<(Box<str>, String)>,
}

impl Redaction {
    /// Replaces these kinds; none when there are none.
    pub fn new(volume_id: bool, names: bool) -> Option<Self> {
        (volume_id || names).then(|| Self {
            volume_id,
            names,
            known: Vec::new(),
        })
    }

    /// The same, which finds the volume IDs and the names in texts too, beside those that it finds already.
    #[must_use]
    pub fn knowing<'a>(
        &self,
        volume_ids: impl IntoIterator<Item = &'a str>,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        self.learning(volume_ids, names).unwrap_or_else(|| self.clone())
    }

    /// As [`Self::knowing`]; none where it finds all of them already: callers say at each step what they know, and a hash takes time.
    pub(super) fn learning<'a>(
        &self,
        volume_ids: impl IntoIterator<Item = &'a str>,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Option<Self> {
        let ids = volume_ids.into_iter().filter(|_| self.volume_id);
        let names = names.into_iter().filter(|_| self.names);
        let is_known = |value: &str| self.known.iter().any(|(known, _)| **known == *value);
        let mut known: Vec<(Box<str>, String)> = Vec::new();
        for value in ids.chain(names).filter(|value| !value.is_empty() && !is_known(value)) {
            let shown = hash(value);
            // What is left of one that was cut stands for the whole.
            for form in cut_forms(value).chain([value.into()]) {
                // Texts of others are shown without what a terminal acts upon.
                if let Cow::Owned(plain) = plain(&form) {
                    known.push((plain.into(), shown.clone()));
                }
                known.push((form, shown.clone()));
            }
        }
        if known.is_empty() {
            return None;
        }
        known.extend(self.known.iter().cloned());
        // One that contains another goes first, so that no rest is left behind.
        known.sort_by(|(one, _), (other, _)| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        known.dedup();
        Some(Self { known, ..*self })
    }

    /// What the attribute `key` shows.
    pub(super) fn value<'a>(&self, key: &str, value: AttrValue<'a>) -> AttrValue<'a> {
        let AttrValue::Str(text) = value else { return value };
        let whole = (self.volume_id && key == attr::CSI_VOLUME_ID) || (self.names && NAMES.contains(&key));
        if whole {
            return AttrValue::Str(Cow::Owned(hash(&text)));
        }
        // A text in which such names occur.
        if key == attr::URL_FULL {
            return AttrValue::Str(Cow::Owned(self.text(&text)));
        }
        AttrValue::Str(text)
    }

    /// A text, without the values that are known.
    pub(super) fn text(&self, text: &str) -> String {
        let (whole, rest) = self.split_cut(text);
        let mut whole = self.known.iter().fold(whole.to_owned(), |text, (value, shown)| {
            if value.len() >= SHORTEST_ANYWHERE {
                text.replace(&**value, shown)
            } else {
                replace_alone(&text, value, shown)
            }
        });
        whole.push_str(rest);
        whole
    }

    /// A text that may have been cut in the middle of a value: what is before that value, and what stands for it.
    fn split_cut<'a>(&'a self, text: &'a str) -> (&'a str, &'a str) {
        if text.len() < SHORTEST_CUT {
            return (text, "");
        }
        let beginnings = self
            .known
            .iter()
            .filter_map(|(value, shown)| Some((beginning_at_end(text, value)?, &**shown)));
        match beginnings.max_by_key(|(length, _)| *length) {
            Some((length, shown)) => (&text[..text.len() - length], shown),
            None => (text, ""),
        }
    }
}

/// How many bytes at the end of a text are the beginning of `value`, or all of it.
fn beginning_at_end(text: &str, value: &str) -> Option<usize> {
    let lengths = SHORTEST_ANYWHERE..=value.len().min(text.len());
    lengths.rev().find(|length| {
        let beginning = value.get(..*length);
        beginning.is_some_and(|beginning| text.ends_with(beginning))
    })
}

/// Replaces `value` where neither a letter nor a digit is beside it.
fn replace_alone(text: &str, value: &str, shown: &str) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(value) {
        let (before, found) = rest.split_at(at);
        let after = &found[value.len()..];
        replaced.push_str(before);
        let alone = !replaced.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric);
        replaced.push_str(if alone { shown } else { value });
        rest = after;
    }
    replaced.push_str(rest);
    replaced
}

#[cfg(test)]
mod tests {
    use csi_attacher_model::decide::{shown_handle, shown_within};
    use proptest::prelude::*;

    use super::*;

    fn shown(redaction: &Redaction, key: &str, text: &str) -> String {
        match redaction.value(key, text.into()) {
            AttrValue::Str(text) => text.into_owned(),
            other => panic!("{other:?}"),
        }
    }

    /// `printf %s pvc-1 | sha256sum` and `printf %s vol-0123 | sha256sum`: documented, so that people can look for one.
    #[test]
    fn the_hash_stays_what_it_is() {
        assert_eq!(hash("pvc-1"), "f2868e1aa7cab669");
        assert_eq!(hash("vol-0123"), "f1dcc41f8f47bcb4");
    }

    #[test]
    fn only_what_was_asked_for_is_replaced() {
        assert_eq!(Redaction::new(false, false), None);
        for (volume_id, names) in [(true, false), (false, true), (true, true)] {
            let redaction = Redaction::new(volume_id, names).unwrap();
            let either = |asked: bool| if asked { hash("x-1") } else { "x-1".to_owned() };
            assert_eq!(shown(&redaction, attr::CSI_VOLUME_ID, "x-1"), either(volume_id));
            for key in NAMES {
                assert_eq!(shown(&redaction, key, "x-1"), either(names), "{key}");
            }
            for key in [attr::CSI_PLUGIN_NAME, attr::RPC_METHOD, attr::VOLUME_ATTACHMENT_UID] {
                assert_eq!(shown(&redaction, key, "x-1"), "x-1", "{key}");
            }
            assert_eq!(redaction.value(attr::ATTEMPT, 1_i64.into()), AttrValue::I64(1));
        }
    }

    #[test]
    fn texts_lose_what_is_known() {
        let all = Redaction::new(true, true)
            .unwrap()
            .knowing(Some("pvc-12"), ["pvc-1", "n1", "", "node-a"]);
        let (volume, name, short) = (hash("pvc-12"), hash("pvc-1"), hash("n1"));
        assert_eq!(
            all.text("pvc-12 of pvc-1 on n1, not on n10 or en1; (n1)"),
            format!("{volume} of {name} on {short}, not on n10 or en1; ({short})")
        );
        let url = shown(&all, attr::URL_FULL, "https://h:1/api/v1/persistentvolumes/pvc-1");
        assert_eq!(url, format!("https://h:1/api/v1/persistentvolumes/{name}"));
        let ids = Redaction::new(true, false)
            .unwrap()
            .knowing(["pvc-12", "vol-7"], ["pvc-1"]);
        assert_eq!(
            ids.text("pvc-12 pvc-1, vol-7"),
            format!("{volume} pvc-1, {}", hash("vol-7"))
        );
        assert_eq!(
            Redaction::new(false, true).unwrap().text("nothing is known"),
            "nothing is known"
        );
    }

    /// As refusals show it, the whole one is not found there.
    #[test]
    fn a_handle_that_was_cut_is_found_as_the_whole_one() {
        let (long, other) = ("h".repeat(300), format!("{}é", "n".repeat(255)));
        let redaction = Redaction::new(true, true).unwrap().knowing([&*long], [&*other]);
        for (value, start) in [(&*long, "hh"), (&*other, "nn")] {
            let [shorter] = shown_within([value], 100);
            for shown in [value, &*shown_handle(value), &*shorter] {
                let text = redaction.text(&format!("volume {shown} is another one"));
                assert!(text.contains(&hash(value)) && !text.contains(start), "{text}");
            }
        }
        assert_eq!(redaction.learning([&*long], [&*other]), None);
    }

    /// A driver's text is cut, and freed of what a terminal acts upon, before it is on a span.
    #[test]
    fn what_the_limit_of_a_text_leaves_of_a_name_is_found() {
        let redaction = Redaction::new(true, true)
            .unwrap()
            .knowing(["vol-0123", "no\u{2028}line"], ["vol-0", "grün-é"]);
        let long = "-".repeat(SHORTEST_CUT);
        let rows = [
            ("vol-012", hash("vol-0123")),
            ("vol-0123", hash("vol-0123")),
            ("vol-0", hash("vol-0")),
            ("vol-", hash("vol-0")),
            ("vol", "vol".to_owned()),
            ("gr\u{fc}n-", hash("gr\u{fc}n-\u{e9}")),
            ("no li", hash("no\u{2028}line")),
            ("no line on", format!("{} on", hash("no\u{2028}line"))),
        ];
        for (left, wanted) in rows {
            let [text, wanted] = [left, &*wanted].map(|end| format!("{long} {end}"));
            assert_eq!(redaction.text(&text), wanted);
        }
        assert_eq!(redaction.text("no such vol-"), "no such vol-", "that is no cut text");
    }

    /// Each step of an attempt says what it knows.
    #[test]
    fn what_is_known_is_not_learned_again() {
        let known = Redaction::new(true, true).unwrap().knowing(["vol-7"], ["pvc-1"]);
        assert_eq!(known.learning(["vol-7"], ["pvc-1", ""]), None);
        let more = known.learning(["vol-7"], ["pvc-12"]).unwrap();
        let all = Redaction::new(true, true).unwrap();
        assert_eq!(more, all.knowing(["vol-7"], ["pvc-1", "pvc-12"]));
        assert_eq!(Redaction::new(true, false).unwrap().learning(None, ["pvc-1"]), None);
    }

    proptest! {
        /// Whatever surrounds it, a name that is long enough is gone.
        #[test]
        fn no_long_name_stays(name in "[a-z][a-z0-9-]{3,12}", before in "\\PC{0,12}", after in "\\PC{0,12}") {
            // A hash may happen to contain a short name of digits and letters up to f.
            prop_assume!(!hash(&name).contains(&name));
            let redaction = Redaction::new(true, true).unwrap().knowing(None, [name.as_str()]);
            let text = redaction.text(&format!("{before}{name}{after}"));
            prop_assert!(!text.contains(&name) || before.contains(&name[..1]) || after.contains(&name[..1]), "{}", text);
        }
    }
}
