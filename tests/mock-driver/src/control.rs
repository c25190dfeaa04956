//! Commands that change a mock driver while it runs: one grammar for the script file, the control socket and tests.

use serde::{Deserialize, Serialize};

use std::time::Duration;

use super::facts::Method;
use super::script::Rule;
use super::settings::ControllerCapability;
use super::shared::{MockShared, MockState};

/// Bytes of a volume that a command makes without a size.
const DEFAULT_VOLUME_BYTES: i64 = 1 << 30;

/// A change of a mock driver, or a question. As JSON or YAML an object with one member, such as
/// `{"driftDetach": {"volume": "v1", "node": "n1"}}`; a command without arguments is just its name, such as `"dump"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum ControlCommand {
    /// Adds a rule after those that are there.
    Rule(Rule),
    /// Removes all rules.
    ClearRules,
    /// Makes a volume of that id unless there is one.
    CreateVolume {
        /// Volume id.
        volume: String,
        /// Size in bytes; 1 GiB when absent.
        #[serde(default)]
        capacity_bytes: Option<i64>,
    },
    /// Removes a volume, attached or not.
    DeleteVolume {
        /// Volume id.
        volume: String,
    },
    /// Attaches a volume behind the caller's back.
    DriftAttach {
        /// Volume id.
        volume: String,
        /// Node id.
        node: String,
    },
    /// Detaches a volume behind the caller's back.
    DriftDetach {
        /// Volume id.
        volume: String,
        /// Node id.
        node: String,
    },
    /// Switches a controller capability.
    Capability {
        /// Name in the specification, such as `LIST_VOLUMES`.
        name: String,
        /// Whether it is on.
        on: bool,
    },
    /// Switches the whole Controller service.
    ControllerService {
        /// Whether it is on.
        on: bool,
    },
    /// Sets what Probe answers.
    Ready {
        /// Whether the driver is ready.
        on: bool,
    },
    /// Changes the driver's name.
    DriverName {
        /// The name GetPluginInfo answers from now on.
        name: String,
    },
    /// Sets which nodes exist.
    Nodes {
        /// Node ids; absent accepts every id.
        #[serde(default)]
        nodes: Option<Vec<String>>,
    },
    /// Sets how many volumes a node can have.
    AttachLimit {
        /// The node; absent means all nodes without a limit of their own.
        #[serde(default)]
        node: Option<String>,
        /// The limit; absent removes it.
        #[serde(default)]
        limit: Option<usize>,
    },
    /// Sets how long the calls of a method take.
    Delay {
        /// The method.
        method: Method,
        /// Milliseconds; 0 removes the delay.
        delay_ms: u64,
    },
    /// Sets the health of a volume.
    Condition {
        /// Volume id.
        volume: String,
        /// Whether something is wrong with it.
        abnormal: bool,
        /// Text for people.
        #[serde(default)]
        message: String,
    },
    /// Closes all connections; new ones are accepted.
    DropConnections,
    /// Asks for the recorded calls.
    Calls,
    /// Asks for the state: settings, volumes with their nodes, rules with what is left of them.
    Dump,
}

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// No controller capability has that name.
    #[error("unknown controller capability {0:?}, want a name such as LIST_VOLUMES")]
    UnknownCapability(String),
    /// There is no volume of that id.
    #[error("volume {0:?} does not exist")]
    UnknownVolume(String),
    /// The volume is not attached to the node.
    #[error("volume {volume:?} is not attached to node {node:?}")]
    NotAttached {
        /// Volume id.
        volume: String,
        /// Node id.
        node: String,
    },
    /// The text is no command.
    #[error("not a command: {0}")]
    Malformed(String),
}

/// What a command answers.
pub(super) enum Reply {
    /// It is done.
    Done,
    /// The answer to a question.
    Value(serde_json::Value),
    /// The server has to close its connections.
    DropConnections,
}

/// Carries out a command, except for the connections, which are the server's.
pub(super) fn apply(shared: &MockShared, command: ControlCommand) -> Result<Reply, CommandError> {
    match command {
        ControlCommand::DropConnections => Ok(Reply::DropConnections),
        ControlCommand::Calls => Ok(Reply::Value(serde_json::json!(shared.calls.records()))),
        ControlCommand::Dump => Ok(Reply::Value(dump(shared))),
        command => shared.change(|state| change(state, command)).map(|()| Reply::Done),
    }
}

fn change(state: &mut MockState, command: ControlCommand) -> Result<(), CommandError> {
    let (settings, backend) = (&mut state.settings, &mut state.backend);
    match command {
        ControlCommand::Rule(rule) => state.script.add(rule),
        ControlCommand::ClearRules => state.script.clear(),
        ControlCommand::CreateVolume { volume, capacity_bytes } => {
            backend.ensure_volume(&volume, capacity_bytes.unwrap_or(DEFAULT_VOLUME_BYTES));
        }
        ControlCommand::DeleteVolume { volume } => known(backend.remove_volume(&volume), volume)?,
        ControlCommand::DriftAttach { volume, node } => backend.drift_attach(&volume, &node),
        ControlCommand::DriftDetach { volume, node } => {
            if !backend.drift_detach(&volume, &node) {
                return Err(CommandError::NotAttached { volume, node });
            }
        }
        ControlCommand::Capability { name, on } => {
            let capability = capability(&name)?;
            if on {
                settings.capabilities.insert(capability)
            } else {
                settings.capabilities.remove(&capability)
            };
        }
        ControlCommand::ControllerService { on } => settings.controller_service = on,
        ControlCommand::Ready { on } => settings.ready = on,
        ControlCommand::DriverName { name } => settings.driver_name = name,
        ControlCommand::Nodes { nodes } => settings.nodes = nodes.map(|nodes| nodes.into_iter().collect()),
        ControlCommand::AttachLimit { node: None, limit } => settings.attach_limit = limit,
        ControlCommand::AttachLimit {
            node: Some(node),
            limit,
        } => {
            settings.node_attach_limits.remove(&node);
            settings.node_attach_limits.extend(limit.map(|limit| (node, limit)));
        }
        ControlCommand::Delay { method, delay_ms } => {
            settings.delays.insert(method, Duration::from_millis(delay_ms));
        }
        ControlCommand::Condition {
            volume,
            abnormal,
            message,
        } => {
            known(backend.set_condition(&volume, abnormal, message), volume)?;
        }
        // Answered in `apply` without a change of the state.
        ControlCommand::DropConnections | ControlCommand::Calls | ControlCommand::Dump => {}
    }
    Ok(())
}

fn known(found: bool, volume: String) -> Result<(), CommandError> {
    if found {
        Ok(())
    } else {
        Err(CommandError::UnknownVolume(volume))
    }
}

/// The controller capability of that name.
pub(super) fn capability(name: &str) -> Result<ControllerCapability, CommandError> {
    ControllerCapability::from_str_name(name)
        .filter(|capability| *capability != ControllerCapability::Unknown)
        .ok_or_else(|| CommandError::UnknownCapability(name.to_owned()))
}

fn dump(shared: &MockShared) -> serde_json::Value {
    let (calls, in_flight) = (shared.calls.count(), shared.calls.in_flight(None));
    shared.read(|state| {
        let settings = &state.settings;
        serde_json::json!({
            "driverName": settings.driver_name,
            "ready": settings.ready,
            "controllerService": settings.controller_service,
            "capabilities": settings.capabilities.iter().map(ControllerCapability::as_str_name).collect::<Vec<_>>(),
            "nodes": settings.nodes,
            "attachLimit": settings.attach_limit,
            "volumes": state.backend.dump(),
            "rules": state.script.remaining(),
            "calls": calls,
            "callsInFlight": in_flight.now,
            "peakCallsInFlight": in_flight.peak,
        })
    })
}

/// Reads one command from a line of JSON.
pub fn parse_command(line: &str) -> Result<ControlCommand, CommandError> {
    serde_json::from_str(line).map_err(|error| CommandError::Malformed(error.to_string()))
}

/// Reads a list of commands from YAML.
pub fn parse_script(yaml: &str) -> Result<Vec<ControlCommand>, CommandError> {
    // By way of JSON, because YAML would want a tag for each command.
    let malformed = |error: String| CommandError::Malformed(error);
    let items: Vec<serde_json::Value> = serde_yaml::from_str(yaml).map_err(|error| malformed(error.to_string()))?;
    let read =
        |(index, item)| serde_json::from_value(item).map_err(|error| malformed(format!("item {}: {error}", index + 1)));
    items.into_iter().enumerate().map(read).collect()
}
