//! The plugin `kubectl attacher`, found by the real kubectl on PATH, against stock kube-controller-manager.

mod completion;
mod golden;
mod plugin;
mod release;
mod wait;
mod why;
mod why_by_hand;
