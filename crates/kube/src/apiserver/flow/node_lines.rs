//! Those of one driver that wait: a line for each node, and the nodes take turns.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A line for each node. One that is about no node has a turn of its own, so that it waits for no more than one of each node.
#[derive(Debug)]
pub(super) struct NodeLines<T> {
    /// None of the lines is empty.
    lines: HashMap<Arc<str>, VecDeque<T>>,
    turns: VecDeque<Turn<T>>,
    len: usize,
}

/// Whose turn it is.
#[derive(Debug)]
enum Turn<T> {
    /// That of the first in the line of this node.
    Node(Arc<str>),
    /// That of one that is about no node.
    Single(T),
}

impl<T> Default for NodeLines<T> {
    fn default() -> Self {
        Self {
            lines: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> NodeLines<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Puts one at the end of its node's line.
    pub(super) fn push(&mut self, node: Option<&Arc<str>>, waiting: T) {
        self.len += 1;
        let Some(node) = node else {
            return self.turns.push_back(Turn::Single(waiting));
        };
        match self.lines.entry(node.clone()) {
            Entry::Occupied(line) => line.into_mut().push_back(waiting),
            Entry::Vacant(line) => {
                line.insert(VecDeque::from([waiting]));
                self.turns.push_back(Turn::Node(node.clone()));
            }
        }
    }

    /// Takes the one whose turn it is; the next turn of its node comes after those of all others.
    pub(super) fn pop(&mut self) -> Option<T> {
        let turn = self.turns.pop_front()?;
        self.len = self.len.saturating_sub(1);
        let node = match turn {
            Turn::Node(node) => node,
            Turn::Single(waiting) => return Some(waiting),
        };
        let line = self.lines.get_mut(&node)?;
        let first = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&node);
        } else {
            self.turns.push_back(Turn::Node(node));
        }
        first
    }
}
