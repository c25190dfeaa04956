//! The operator in the place of the sidecar kubernetes-csi/external-attacher: one driver, configured by the sidecar's own
//! flags, without AttacherConfig objects and without their CustomResourceDefinition.
//!
//! [`read`] turns arguments into settings and does nothing else. What a flag means is what it means for the sidecar,
//! where it means anything here; docs/install/DROP-IN.md describes each.

mod flags;
mod gates;
mod settings;
mod table;
mod values;

#[cfg(test)]
mod tests;

use std::ffi::OsString;

pub use flags::FlagError;
pub use settings::{DropIn, SettingsError};

use table::{Flag, FlagOwner, Flags};

#[derive(Debug)]
pub enum DropInCommand {
    Help(String),
    Version,
    Serve(Box<DropIn>),
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// They are not in the form of flags: usage is shown and the exit code is 2.
    #[error(transparent)]
    Flag(#[from] FlagError),
    /// Their values do not go together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// Whether these arguments (without the program's name) are meant for this mode: when one of them is a flag that only
/// the sidecar has, or a flag of several letters behind a single dash, as only Go programs read them.
pub fn is_drop_in(arguments: &[OsString]) -> bool {
    let words = arguments.iter().map(|argument| argument.to_string_lossy());
    words.take_while(|word| word != "--").any(|word| {
        let Some(rest) = word.strip_prefix('-') else {
            return false;
        };
        let (name, single) = match rest.strip_prefix('-') {
            Some(name) => (name, false),
            None => (rest, true),
        };
        let name = name.split('=').next().unwrap_or_default();
        (single && name.len() > 1) || Flag::named(name).is_some_and(|flag| flag.owner == FlagOwner::Sidecar)
    })
}

/// Reads the arguments, without the program's name.
pub fn read(arguments: &[OsString]) -> Result<DropInCommand, ReadError> {
    let Some(flags) = flags::parse(arguments)? else {
        return Ok(DropInCommand::Help(usage()));
    };
    settings::check(&flags)?;
    if flags.version {
        return Ok(DropInCommand::Version);
    }
    Ok(DropInCommand::Serve(Box::new(settings::into_settings(flags)?)))
}

/// All flags, in the manner of Go programs.
pub fn usage() -> String {
    let defaults = Flags::default();
    let mut text =
        String::from("Usage of csi-attacher-operator in drop-in mode (instead of the external-attacher sidecar):\n");
    for flag in table::sorted() {
        text.push_str(&flag.usage(&defaults));
    }
    text
}
