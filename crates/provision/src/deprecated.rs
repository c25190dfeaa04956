//! What is told of classes from before a rule.

use std::sync::Arc;

use crate::clock;
use crate::events::{NewEvent, of_class};
use crate::objects::StorageClass;
use crate::provision::event::{ProvisionEventReason, deprecated_keys};

/// The Event on a class of a driver that has deprecated keys; none for others.
pub(crate) fn event(driver: &Arc<str>, class: &StorageClass) -> Option<NewEvent> {
    if class.provisioner != *driver {
        return None;
    }
    let reason = ProvisionEventReason::DeprecatedParameters;
    Some(NewEvent {
        driver: driver.clone(),
        reason: reason.as_str(),
        level: reason.level(),
        cause: Box::default(),
        note: deprecated_keys(class)?,
        traceparent: None,
        at: clock::now(),
        subjects: vec![of_class(&class.name, &class.uid)],
    })
}
