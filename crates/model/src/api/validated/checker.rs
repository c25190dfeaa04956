//! [`Checker`]: collects the problems of a spec, and the checks of single values.

use std::net::IpAddr;
use std::time::Duration;

use super::problem::{FieldError, SpecProblem};
use crate::api::duration::GoDuration;
use crate::api::endpoint::is_host;
use crate::api::rules;

/// Converts field by field and collects the problems. A bad field gives a harmless value that is never used, because
/// its problem makes the whole conversion fail.
#[derive(Default)]
pub(super) struct Checker {
    pub(super) errors: Vec<FieldError>,
}

impl Checker {
    pub(super) fn report(&mut self, path_in_spec: &str, problem: SpecProblem) {
        self.errors.push(FieldError::new(path_in_spec, problem));
    }

    pub(super) fn duration(&mut self, path_in_spec: &str, value: GoDuration) -> Duration {
        let in_range = |span: &Duration| (rules::MIN_DURATION..=rules::MAX_DURATION).contains(span);
        value.to_std().filter(in_range).unwrap_or_else(|| {
            self.report(path_in_spec, SpecProblem::DurationRange);
            rules::MAX_DURATION
        })
    }

    pub(super) fn calls(&mut self, path_in_spec: &str, value: i64) -> u32 {
        u32::try_from(value)
            .ok()
            .filter(|_| value <= rules::MAX_CALLS)
            .unwrap_or_else(|| {
                self.report(path_in_spec, SpecProblem::Calls);
                0
            })
    }
}

/// Whether a text is the name of a CSI driver (CSI spec, "GetPluginInfo"): at most 63 ASCII letters, digits, `-` and `.`, a letter or digit at both ends.
pub fn is_driver_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let at_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= rules::MAX_DRIVER_NAME
        && at_end(bytes.first())
        && at_end(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

pub(super) fn is_fs_type(name: &str) -> bool {
    name.len() <= rules::MAX_FS_TYPE
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// A DNS label of lower-case letters, as namespaces have it.
pub(super) fn is_label(name: &str) -> bool {
    let bytes = name.as_bytes();
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    bytes.len() <= rules::MAX_NAMESPACE
        && bytes.first().is_some_and(plain)
        && bytes.last().is_some_and(plain)
        && bytes.iter().all(|byte| plain(byte) || *byte == b'-')
}

/// Labels with points between them, as most objects are named.
pub(super) fn is_subdomain(name: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        bytes.first().is_some_and(plain)
            && bytes.last().is_some_and(plain)
            && bytes.iter().all(|byte| plain(byte) || *byte == b'-')
    };
    name.len() <= rules::MAX_HOST && name.split('.').all(is_part)
}

pub(super) fn is_server_name(name: &str) -> bool {
    is_host(name) || name.parse::<IpAddr>().is_ok()
}
