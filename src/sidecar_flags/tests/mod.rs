mod document;
mod flags;
mod settings;
mod sidecar;
mod vendors;

use std::ffi::OsString;

fn arguments(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(OsString::from).collect()
}
