//! How an object is named: `KIND NAME`, or `TYPE.GROUP/NAME`, as `kubectl get -o name` and `list -o name` print it.

use clap::ValueEnum;
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use std::ffi::OsStr;

/// What kubectl calls pods, besides the plugin's own word; so are the others.
pub(super) const PODS: [&str; 2] = ["po", "pods"];
pub(super) const CLAIMS: [&str; 3] = ["persistentvolumeclaim", "persistentvolumeclaims", "claim"];
pub(super) const VOLUMES: [&str; 2] = ["persistentvolume", "persistentvolumes"];
pub(super) const ATTACHMENTS: [&str; 4] = [
    "volumeattachment",
    "volumeattachments",
    "volumeattachment.storage.k8s.io",
    "volumeattachments.storage.k8s.io",
];
pub(super) const NODES: [&str; 2] = ["no", "nodes"];
pub(super) const DRIVERS: [&str; 3] = ["csidrivers", "csidriver.storage.k8s.io", "csidrivers.storage.k8s.io"];

/// The first word of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectWord<K> {
    /// Its kind: the next word is its name.
    Kind(K),
    /// All of it.
    Named(K, String),
}

impl<K: ValueEnum + Copy> ObjectWord<K> {
    /// Kind and name, with the word behind this one.
    pub(crate) fn with(&self, next: Option<&str>) -> Result<(K, String), ArgumentError> {
        match (self, next) {
            (Self::Kind(kind), Some(next)) => Ok((*kind, name_of(kind, next)?)),
            (Self::Named(kind, name), None) => Ok((*kind, name.clone())),
            (Self::Kind(_), None) => Err(ArgumentError::NoName),
            (Self::Named(_, name), Some(next)) => Err(ArgumentError::TwoNames(name.clone(), next.to_owned())),
        }
    }
}

/// Why an argument cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArgumentError {
    /// A name of no letters.
    #[error("the name is empty; is a variable of the shell not set?")]
    EmptyName,
    /// A kind alone.
    #[error("the name is missing: KIND NAME, or KIND/NAME")]
    NoName,
    /// `KIND/NAME NAME`.
    #[error("{0} and {1} are two names, and one is asked for")]
    TwoNames(String, String),
    /// `KIND/NAME` of another kind than the one that is asked for.
    #[error("expected NAME or {kind}/NAME, not {text}")]
    OtherKind {
        /// The plugin's word for the kind.
        kind: String,
        /// What was given.
        text: String,
    },
    /// `wait` without an object.
    #[error("name --node NODE, or pvc NAME, pv NAME or va NAME")]
    NothingToWaitFor,
    /// Not a duration.
    #[error("expected a duration such as 30s, 10m or 1h")]
    NoDuration,
    /// A duration that is too long.
    #[error("too long")]
    TooLong,
}

/// Reads the name of an object. A shell makes an empty one of a variable that is not set, and that names nothing.
pub(super) fn name(text: &str) -> Result<String, ArgumentError> {
    match text.trim() {
        "" => Err(ArgumentError::EmptyName),
        _ => Ok(text.to_owned()),
    }
}

/// Reads the name of an object of this kind, which may stand before it.
pub(super) fn name_of<K: ValueEnum>(kind: &K, text: &str) -> Result<String, ArgumentError> {
    let Some((word, rest)) = text.split_once('/') else {
        return name(text);
    };
    let kind = kind.to_possible_value();
    // No name has a slash.
    if kind.as_ref().is_some_and(|kind| kind.matches(word, false)) && !rest.contains('/') {
        return name(rest);
    }
    Err(ArgumentError::OtherKind {
        kind: kind.map_or_else(String::new, |kind| kind.get_name().to_owned()),
        text: text.to_owned(),
    })
}

/// Reads the first word of an object.
pub(super) fn object<K: ValueEnum + Copy + Send + Sync + 'static>() -> ObjectParser<K> {
    ObjectParser(EnumValueParser::new())
}

/// Takes the kinds of `K`; help and completion list them.
#[derive(Clone, Debug)]
pub(super) struct ObjectParser<K: ValueEnum + Copy + Send + Sync + 'static>(EnumValueParser<K>);

impl<K: ValueEnum + Copy + Send + Sync + 'static> TypedValueParser for ObjectParser<K> {
    type Value = ObjectWord<K>;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        let Some((word, _)) = value.to_str().and_then(|text| text.split_once('/')) else {
            return self.0.parse_ref(command, argument, value).map(ObjectWord::Kind);
        };
        let kind = self.0.parse_ref(command, argument, OsStr::new(word))?;
        let of_kind = move |text: &str| name_of(&kind, text);
        let name = of_kind.parse_ref(command, argument, value)?;
        Ok(ObjectWord::Named(kind, name))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}
