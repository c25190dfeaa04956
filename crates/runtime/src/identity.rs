//! What a driver told about itself, in the log, the state and the metrics.

use tracing::info;

use crate::connect::handshake::Handshake;
use crate::role::Role;
use crate::state::DriverStateSender;
use crate::task::DriverTask;

impl<R: Role> DriverTask<R> {
    pub(super) fn set_plugin(&self, publisher: &DriverStateSender, handshake: &Handshake) {
        let mode = handshake.mode();
        let plugin = &handshake.plugin;
        let known = handshake.described();
        if self.is_known_to_be_stalled(&known) {
            return;
        }
        info!(
            config = &*self.name,
            driver = plugin.name,
            version = plugin.vendor_version,
            mode,
            capabilities = handshake.capabilities.names.join(","),
            "driver connected"
        );
        publisher.plugin(known);
    }

    pub(super) fn set_driver_down(&self) {
        let told = self.status.borrow().plugin.as_ref().map(|plugin| plugin.name.clone());
        if let Some(name) = told.or_else(|| self.config.borrow().driver_name.clone())
            && !self.claims.is_served_by_another(&self.name, &name)
        {
            self.role.metrics().driver_up(&name, false);
        }
    }

    /// The metrics of a driver that answered. They are made anew after an engine ended, whose end removes them.
    pub(super) fn init_driver_metrics(&self, handshake: &Handshake) {
        let plugin = &handshake.plugin;
        let mode = handshake.mode();
        let metrics = self.role.metrics();
        metrics.driver_info(&plugin.name, &plugin.vendor_version, mode);
        metrics.driver_up(&plugin.name, true);
    }
}
