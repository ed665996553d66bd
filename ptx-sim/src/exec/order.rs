//! What orders the blocks of a grid: release and acquire through atomics in device memory.
//!
//! Blocks that communicate run one after the other, so that it is enough to know, for every block, whose writes it may rely on.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use super::Block;

/// Blocks, by their number in the grid.
type Blocks = Arc<BTreeSet<u64>>;

/// What was released through each address.
#[derive(Debug, Default)]
pub(crate) struct Released(Mutex<HashMap<u64, Blocks>>);

/// One block's view.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Blocks whose writes this one has acquired.
    known: Blocks,
    /// Read from atomics, but not yet made good by a fence.
    pending: Vec<Blocks>,
    /// A device-wide fence has run: atomics from now on release.
    fenced: bool,
}

impl Order {
    /// Whether the writes of `other` are known to be visible.
    pub fn knows(&self, other: u64) -> bool {
        self.known.contains(&other)
    }

    fn learn(&mut self, blocks: &Blocks) {
        if !blocks.is_subset(&self.known) {
            Arc::make_mut(&mut self.known).extend(blocks.iter());
        }
    }

    /// `fence.acq_rel.gpu` or `membar.gl`.
    pub fn fence(&mut self) {
        for blocks in std::mem::take(&mut self.pending) {
            self.learn(&blocks);
        }
        self.fenced = true;
    }
}

impl Block<'_> {
    /// A strong access to device memory; `acquire` and `release` are its own semantics, fences around it count as well.
    pub(super) fn communicate(&mut self, address: u64, writes: bool, acquire: bool, release: bool) {
        let mut released = self.context.released.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(blocks) = released.get(&address) {
            if acquire {
                self.order.learn(blocks);
            } else {
                self.order.pending.push(blocks.clone());
            }
        }
        if writes && (release || self.order.fenced) {
            let mut blocks = self.order.known.clone();
            Arc::make_mut(&mut blocks).insert(self.linear);
            if let Some(old) = released.get(&address) {
                Arc::make_mut(&mut blocks).extend(old.iter());
            }
            released.insert(address, blocks);
        }
    }
}
