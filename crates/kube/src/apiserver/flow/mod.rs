//! How fast requests may go: slots that are shared by the drivers and whose number follows the API server's answers, the limit of
//! a driver, and the pause that the API server asks for.

mod limit;
mod lines;
mod node_lines;
pub(super) mod retry_after;
pub(super) mod slots;
pub(super) mod throttle;

#[cfg(test)]
mod tests;
