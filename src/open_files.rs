//! The limit of open files of the process.
//!
//! Each connection is one: to the API server, to drivers, of who probes or scrapes. Some systems start a process with a soft
//! limit of 1,024, far below the hard one, for programs that use `select`, which this one does not.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

/// Below this, many drivers and volumes at a time could find none left.
const MIN_FILES: u64 = 1024;

/// Raises the soft limit to the hard one, and warns when there are few all the same.
pub(crate) fn raise_limit() {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: before.maximum,
        ..before
    };
    if raised.current != before.current
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        warn!(%error, "cannot raise the soft limit of open files to the hard one");
    }
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < MIN_FILES => {
            warn!(
                limit,
                "few files may be open at a time; raise the limit of open files (ulimit -Hn) to {MIN_FILES} or more"
            );
        }
        limit => debug!(limit, "limit of open files"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        raise_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
