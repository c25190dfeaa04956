//! Those of one driver that wait for a slot: a line for each kind of request, and in it one for each node, which take turns.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::slots::{RequestSlot, SlotKind};

/// Who waits, and gets the slot by this.
pub(super) type Waiting = oneshot::Sender<RequestSlot>;

/// A line that was passed over so often by others of its driver is next.
const PASSED_OVER: u64 = 15;

/// Which line a request waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub kind: SlotKind,
    pub can_wait: bool,
}

/// Whose turn it is: the least is next. First those without anything in flight, then by driver, then by line.
pub(super) type TurnOrder = (bool, Turn, bool, bool, Turn);

/// How one compares with others of its level: by how many it has in flight, then by when it was served last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    running: usize,
    served: u64,
}

/// The lines of one driver.
#[derive(Debug, Default)]
pub(super) struct DriverLines {
    turn: Turn,
    /// How many slots its lines were given.
    granted: u64,
    lines: Vec<(Line, Turn, NodeLines)>,
    /// When it was logged that its requests wait.
    pub logged_at: Option<Instant>,
}

impl DriverLines {
    fn find(&self, line: Line) -> Option<&(Line, Turn, NodeLines)> {
        self.lines.iter().find(|(known, ..)| *known == line)
    }

    fn find_mut(&mut self, line: Line) -> &mut (Line, Turn, NodeLines) {
        let known = self.lines.iter().position(|(known, ..)| *known == line);
        let at = known.unwrap_or_else(|| {
            self.lines.push((line, Turn::default(), NodeLines::default()));
            self.lines.len() - 1
        });
        &mut self.lines[at]
    }

    /// Neither in flight nor in line.
    pub fn is_idle(&self) -> bool {
        self.turn.running == 0 && self.all_waiting() == 0
    }

    pub fn waiting(&self, line: Line) -> usize {
        self.find(line).map_or(0, |(.., waiting)| waiting.len())
    }

    pub fn all_waiting(&self) -> usize {
        self.lines.iter().map(|(.., waiting)| waiting.len()).sum()
    }

    /// Whether a request of this line is the first in flight of its driver, or of its kind unless it can wait.
    pub fn is_first_in_flight(&self, line: Line) -> bool {
        let running = self.find(line).map_or(0, |(_, turn, _)| turn.running);
        self.turn.running == 0 || (running == 0 && !line.can_wait)
    }

    pub fn push(&mut self, line: Line, node: Option<&Arc<str>>, waiting: Waiting) {
        self.find_mut(line).2.push(node, waiting);
    }

    pub fn pop(&mut self, line: Line) -> Option<Waiting> {
        self.find_mut(line).2.pop()
    }

    /// Counts a request that is sent; true when it is the only one of its line.
    pub fn take(&mut self, line: Line, number: u64) -> bool {
        self.turn.running += 1;
        self.turn.served = number;
        self.granted += 1;
        let granted = self.granted;
        let (_, turn, _) = self.find_mut(line);
        turn.running += 1;
        turn.served = granted;
        turn.running == 1
    }

    /// One request less; true when its line has none any more.
    pub fn give_back(&mut self, line: Line) -> bool {
        self.turn.running = self.turn.running.saturating_sub(1);
        let (_, turn, _) = self.find_mut(line);
        turn.running = turn.running.saturating_sub(1);
        turn.running == 0
    }

    /// The line whose turn it is, of those for which there is a slot.
    pub fn next(&self, has_slot: impl Fn(SlotKind) -> bool) -> Option<(TurnOrder, Line)> {
        let waiting = self.lines.iter().filter(|(.., waiting)| !waiting.is_empty());
        let turns = waiting.filter_map(|(line, turn, _)| {
            let is_first = self.is_first_in_flight(*line);
            if !is_first && !has_slot(line.kind) {
                return None;
            }
            let passed_over = self.granted.saturating_sub(turn.served) >= PASSED_OVER;
            Some(((!is_first, self.turn, !passed_over, line.can_wait, *turn), *line))
        });
        turns.min_by_key(|(order, _)| *order)
    }
}

/// A line for each node. One that is about no node has a turn of its own, so that it waits for no more than one of each node.
#[derive(Debug, Default)]
struct NodeLines {
    /// None of the lines is empty.
    lines: HashMap<Arc<str>, VecDeque<Waiting>>,
    turns: VecDeque<NodeTurn>,
    len: usize,
}

/// Whose turn it is.
#[derive(Debug)]
enum NodeTurn {
    /// That of the first in the line of this node.
    Node(Arc<str>),
    /// That of one that is about no node.
    Single(Waiting),
}

impl NodeLines {
    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn len(&self) -> usize {
        self.len
    }

    /// Puts one at the end of its node's line.
    fn push(&mut self, node: Option<&Arc<str>>, waiting: Waiting) {
        self.len += 1;
        let Some(node) = node else {
            return self.turns.push_back(NodeTurn::Single(waiting));
        };
        match self.lines.entry(node.clone()) {
            Entry::Occupied(line) => line.into_mut().push_back(waiting),
            Entry::Vacant(line) => {
                line.insert(VecDeque::from([waiting]));
                self.turns.push_back(NodeTurn::Node(node.clone()));
            }
        }
    }

    /// Takes the one whose turn it is; the next turn of its node comes after those of all others.
    fn pop(&mut self) -> Option<Waiting> {
        let turn = self.turns.pop_front()?;
        self.len = self.len.saturating_sub(1);
        let node = match turn {
            NodeTurn::Node(node) => node,
            NodeTurn::Single(waiting) => return Some(waiting),
        };
        let line = self.lines.get_mut(&node)?;
        let first = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&node);
        } else {
            self.turns.push_back(NodeTurn::Node(node));
        }
        first
    }
}
