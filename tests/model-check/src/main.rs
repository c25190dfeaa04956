//! Runs the worlds.

#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use csi_attacher_model_check::core::{Core, Rules, worlds};
use csi_attacher_model_check::explorer::{Limits, explore};
use std::time::Duration;

fn main() {
    let arguments: Vec<u8> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [which, replicas, faults] = arguments[..] else { return };
    let setting = match which {
        0 => worlds::one_volume_two_nodes(replicas.into(), faults),
        _ => worlds::shared_volume_in_deletion(replicas.into(), faults),
    };
    let mut world = Core::new(setting, Rules::default());
    let limits = Limits { states: 30_000_000, time: Duration::from_secs(600), stability: true };
    let explored = explore(&mut world, limits);
    if let Some(found) = &explored.found {
        println!("{}", found.property);
        for line in world.story(&found.steps) {
            println!("  {line}");
        }
    }
    println!("{:?}", csi_attacher_model_check::explorer::Explored { found: None, ..explored });
}
