//! Tables and properties of the decision core.
//!
//! The tables are the scenarios of the Go sidecar's own unit tests, told again as data for [`world::DecideModel`]: a pure
//! executor that applies our patches as the API server would and asks for the next step until there is none. Rows end
//! with a remark where we differ on purpose. What is never written by us is not in the tables: a stale `attachError`
//! is always cleared by an explicit null ("ATT" below), where the sidecar's patch depends on its copy.

pub(crate) mod api_server;
mod attach;
pub(crate) mod builders;
mod capabilities;
mod commands;
mod detach;
mod identity;
mod large;
mod leaving;
mod listings;
mod messages;
mod mismatches;
mod neighbours;
mod patches;
mod properties;
mod publications;
mod purity;
mod reconcile;
mod record;
mod release_requests;
mod scrub;
mod secrets;
mod simulation;
mod single;
mod stale;
mod strategies;
mod table;
mod trivial;
mod update_filter;
mod vocabulary;
mod volumes;
mod world;
