//! Former places of a volume, and how a person names them in the annotation `attacher.csi.dev/not-attached-at`.

use std::fmt;

use super::calls::VolumeOnNode;
use super::command::command_word;

/// A place where the volume was formerly. As text, it is what names the place in the annotation by which a person says that the volume is
/// not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormerPlace<'a> {
    /// The node ID is a former one.
    Node(&'a str),
    /// Only the handle is.
    Volume(VolumeOnNode<'a>),
}

/// The former place; none for the place that a detach begins with: its driver has to confirm it.
pub(super) fn former_place<'a>(place: VolumeOnNode<'a>, current: VolumeOnNode<'_>) -> Option<FormerPlace<'a>> {
    if place.node_id != current.node_id {
        Some(FormerPlace::Node(place.node_id))
    } else if place.volume_id != current.volume_id {
        Some(FormerPlace::Volume(place))
    } else {
        None
    }
}

/// What a list of names, separated by commas, names of these places.
///
/// Commas and `@` may be in handles and IDs as well. Where a name begins, the longest of those that are known counts, be it that of a place
/// which nobody can confirm: what a person says of `a,b` says nothing of `a`. A name that means two of them names neither.
pub(super) fn named_places<'a>(list: &str, places: &[VolumeOnNode<'a>]) -> Vec<FormerPlace<'a>> {
    let names = places
        .iter()
        .flat_map(|place| [FormerPlace::Node(place.node_id), FormerPlace::Volume(*place)]);
    let known: Vec<(String, FormerPlace<'a>)> = names
        .map(|place| (place.to_string().trim().to_owned(), place))
        .collect();
    let mut found = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        rest = rest.trim_start();
        let begins = known.iter().filter(|(name, _)| is_first(name, rest));
        if let Some((name, place)) = begins.max_by_key(|(name, _)| name.len()) {
            if known.iter().all(|(other, meant)| other != name || meant == place) {
                found.push(*place);
            }
            rest = &rest[name.len()..];
        }
        rest = rest.split_once(',').map_or("", |(_, rest)| rest);
    }
    found
}

/// The list of these places, each as this function has it.
pub(super) fn list_of<'a>(places: &[FormerPlace<'a>], name: impl Fn(&FormerPlace<'a>) -> String) -> String {
    places.iter().map(name).collect::<Vec<_>>().join(",")
}

/// Whether a name is the first of a list.
fn is_first(name: &str, list: &str) -> bool {
    let after = list.strip_prefix(name).map(str::trim_start);
    after.is_some_and(|after| after.is_empty() || after.starts_with(','))
}

impl FormerPlace<'_> {
    /// The same in a command: what a shell would not take as it is, a person has to fill in.
    pub fn in_command(&self) -> String {
        match self {
            Self::Node(node_id) => command_word(node_id, "ID").to_owned(),
            Self::Volume(place) => {
                let handle = command_word(place.volume_id, "HANDLE");
                format!("{handle}@{}", command_word(place.node_id, "ID"))
            }
        }
    }
}

impl fmt::Display for FormerPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node_id) => f.write_str(node_id),
            Self::Volume(place) => write!(f, "{}@{}", place.volume_id, place.node_id),
        }
    }
}
