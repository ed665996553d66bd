//! Knowledge of the agents of other blocks. The knowledge is a tree. Two owners share equal parts of their
//! trees, so the cost of a handover depends only on the new part.

use std::{array, sync::Arc};

use crate::clocks::merge;

/// Number of children of a node.
const FAN: usize = 32;

#[derive(Clone, Debug)]
enum Node {
    Inner(Box<[Tree; FAN]>),
    /// The clocks of one block's agents.
    Row(Vec<u32>),
}

type Tree = Option<Arc<Node>>;

/// The clocks of the agents of several blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge {
    root: Tree,
    /// Number of levels of inner nodes, which suffices for the largest block index.
    height: u32,
}

impl Knowledge {
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// The clocks of the agents of block `block`.
    pub fn row(&self, block: u32) -> &[u32] {
        let (mut tree, mut height) = (&self.root, self.height);
        if !fits(block, height) {
            return &[];
        }
        while let Some(node) = tree {
            match &**node {
                Node::Row(row) => return row,
                Node::Inner(children) => {
                    height -= 1;
                    tree = &children[digit(block, height)];
                }
            }
        }
        &[]
    }

    pub fn of(&self, block: u32, agent: u16) -> u32 {
        self.row(block).get(usize::from(agent)).copied().unwrap_or(0)
    }

    pub fn add(&mut self, block: u32, row: &[u32]) {
        while !fits(block, self.height) {
            self.grow();
        }
        let (mut tree, mut height) = (&mut self.root, self.height);
        loop {
            let empty =
                || Arc::new(if height == 0 { Node::Row(vec![]) } else { Node::Inner(Default::default()) });
            match Arc::make_mut(tree.get_or_insert_with(empty)) {
                Node::Row(known) => return merge(known, row),
                Node::Inner(children) => {
                    height -= 1;
                    tree = &mut children[digit(block, height)];
                }
            }
        }
    }

    pub fn merge(&mut self, other: &Knowledge) {
        if other.height > self.height && self.is_empty() {
            self.clone_from(other);
            return;
        }
        while self.height < other.height {
            self.grow();
        }
        let mut other = other.clone();
        while other.height < self.height && !other.is_empty() {
            other.grow();
        }
        if let Some(all) = union(&self.root, &other.root) {
            self.root = Some(all);
        }
    }

    fn grow(&mut self) {
        self.height += 1;
        if let Some(root) = self.root.take() {
            let mut children = Box::<[Tree; FAN]>::default();
            children[0] = Some(root);
            self.root = Some(Arc::new(Node::Inner(children)));
        }
    }
}

/// Whether a tree of `height` levels can contain `block`.
fn fits(block: u32, height: u32) -> bool {
    u64::from(block) < (FAN as u64).pow(height)
}

fn digit(block: u32, height: u32) -> usize {
    (u64::from(block) / (FAN as u64).pow(height)) as usize % FAN
}

/// The union of both trees. If `theirs` contains the union, the result is `theirs` itself, so that equal
/// knowledge is shared.
fn union(mine: &Tree, theirs: &Tree) -> Tree {
    let (Some(a), Some(b)) = (mine, theirs) else { return theirs.clone() };
    if Arc::ptr_eq(a, b) {
        return None;
    }
    match (&**a, &**b) {
        (Node::Inner(a), Node::Inner(other)) => {
            let more: [Tree; FAN] = array::from_fn(|i| union(&a[i], &other[i]));
            if more.iter().all(Option::is_none) {
                return None;
            }
            let all: Box<[Tree; FAN]> =
                Box::new(array::from_fn(|i| more[i].clone().or_else(|| a[i].clone())));
            let same = |(x, y): (&Tree, &Tree)| match (x, y) {
                (Some(x), Some(y)) => Arc::ptr_eq(x, y),
                (x, y) => x.is_none() && y.is_none(),
            };
            if all.iter().zip(other.iter()).all(same) {
                Some(Arc::clone(b))
            } else {
                Some(Arc::new(Node::Inner(all)))
            }
        }
        (Node::Row(a), Node::Row(other)) => {
            let mut all = a.clone();
            merge(&mut all, other);
            if all == *a {
                None
            } else if all == *other {
                Some(Arc::clone(b))
            } else {
                Some(Arc::new(Node::Row(all)))
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_know_is_the_larger_of_each() {
        let mut all = [Knowledge::default(), Knowledge::default()];
        let blocks = [0, 1, 31, 32, 33, 1023, 1024, 40_000, u32::MAX];
        for (at, &block) in blocks.iter().enumerate() {
            let [first, second] = &mut all;
            if at % 2 == 0 {
                first.add(block, &[at as u32 + 1, 5]);
            }
            if at % 3 == 0 {
                second.add(block, &[7, 2, 9]);
            }
        }
        let of = |all: &Knowledge| blocks.map(|block| [0, 1, 2, 3].map(|agent| all.of(block, agent)));
        let expected = blocks
            .map(|block| [0, 1, 2, 3].map(|agent| all[0].of(block, agent).max(all[1].of(block, agent))));
        for (mine, theirs) in [(0, 1), (1, 0)] {
            let mut both = all[mine].clone();
            both.merge(&all[theirs]);
            assert_eq!(of(&both), expected);
            // An owner that already has all of the knowledge keeps its tree. An owner that has no knowledge
            // shares the other tree.
            let before = both.clone();
            both.merge(&all[theirs]);
            assert!(Arc::ptr_eq(both.root.as_ref().unwrap(), before.root.as_ref().unwrap()));
            for little in [Knowledge::default(), all[theirs].clone()] {
                let mut learns = little;
                learns.merge(&both);
                assert!(Arc::ptr_eq(both.root.as_ref().unwrap(), learns.root.as_ref().unwrap()));
            }
        }
        assert_eq!(all[0].of(2, 0), 0);
        assert_eq!(Knowledge::default().of(5, 0), 0);
    }
}
