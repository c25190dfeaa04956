//! How an answer of the API server is taken in: what it is about, whether it shows what was written, and the cache.

use super::kept;
use crate::apiserver::{ApiError, ApiErrorKind, Returned};
use crate::cache::Store;
use crate::decide::Write;
use crate::decide::patch::WriteTarget;
use crate::objects::ResourceVersion;

/// As [`apply_response`], for a write. It succeeded only if the answer shows what was written and, unless the write takes it off, the
/// finalizer that the copy `held`; or if the object went with it.
pub(in crate::driver) fn apply_write_response(
    store: &Store,
    write: &Write,
    uid: &str,
    version: Option<ResourceVersion>,
    held: Option<&str>,
    outcome: Result<Returned, ApiError>,
) -> Result<bool, ApiError> {
    let outcome = outcome.and_then(|returned| of_write(returned, uid));
    let kept = outcome
        .as_ref()
        .map_or(Ok(()), |answer| kept::check(write, held, answer));
    let gone = apply_response(store, &write.target, uid, version, outcome)?;
    match kept {
        Err(not_kept) if !gone => Err(ApiError::not_kept(not_kept.to_string())),
        _ => Ok(gone),
    }
}

/// What a write brought back, if that is the object that was written to: each write names its UID.
fn of_write(returned: Returned, uid: &str) -> Result<Returned, ApiError> {
    let found = match &returned {
        Returned::Attachment(record) => &record.uid,
        Returned::Volume(record) => &record.uid,
    };
    if **found == *uid {
        return Ok(returned);
    }
    let message = format!("the answer is about an object with UID {found}, not about that with UID {uid}");
    Err(ApiError::garbled(message))
}

/// Puts an answer of the API server into the cache, so that the next decision sees it. True when the object is gone.
/// `uid` and `version` are those of the copy that the request was made from: by the time of the answer the name may be
/// another one's. An answer that is older than that copy is not of the state that the copy was of.
pub(in crate::driver) fn apply_response(
    store: &Store,
    target: &WriteTarget,
    uid: &str,
    version: Option<ResourceVersion>,
    outcome: Result<Returned, ApiError>,
) -> Result<bool, ApiError> {
    let (answered, gone) = match &outcome {
        Ok(Returned::Attachment(record)) => (record.resource_version, record.is_gone()),
        Ok(Returned::Volume(record)) => (record.resource_version, record.is_gone()),
        Err(_) => (ResourceVersion::default(), false),
    };
    if answered != ResourceVersion::default() && Some(answered) < version {
        return Err(store.lists().older_answer());
    }
    match outcome {
        Ok(Returned::Attachment(record)) => store.apply_response(*record),
        Ok(Returned::Volume(record)) => store.apply_response(*record),
        Err(error) => {
            if error.kind == ApiErrorKind::NotFound {
                store.mark_deleted(target, uid);
            }
            return Err(error);
        }
    }
    Ok(gone)
}
