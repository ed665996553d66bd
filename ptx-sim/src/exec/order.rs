//! Order between warps that use no barrier: release and acquire, with fences, as in PTX's memory model.
//!
//! A *release pattern* is a release, or a fence that a strong write of the same warp follows. The pattern
//! publishes the knowledge that the warp has at the release or at the fence. An *acquire pattern* is an
//! acquire, or a strong read that a fence follows. The scope limits the pattern: a release with block scope
//! publishes to the block only. A barrier hands over three things: the warp's knowledge, its knowledge at its
//! last fence, and the knowledge that becomes available at its next fence.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Mutex,
};

use super::{Block, knowledge::Knowledge, warp::Warp};
use crate::{
    clocks::{Agents, merge},
    op::{Order, Scope},
    stamp::Stamp,
};

/// The knowledge of a warp that the block's clocks do not contain. An array has one element per [`Scope`].
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Knowledge of other blocks.
    others: Knowledge,
    /// Knowledge from strong reads. This knowledge takes effect at the warp's next fence.
    pending: [Knowledge; 2],
    /// The knowledge that the warp had at its last fence. Later strong writes publish it.
    fenced: [Knowledge; 2],
    /// For each mbarrier, the number of phases that the warp knows to be complete.
    pub phases: Phases,
    /// For each agent of the block, the writes to shared memory that the asynchronous proxy sees.
    pub proxy: Vec<u32>,
}

/// The number of completed phases, by the number of the mbarrier.
pub(super) type Phases = BTreeMap<u32, u64>;

impl View {
    pub fn others(&self) -> &Knowledge {
        &self.others
    }

    fn merge(&mut self, other: &View) {
        self.others.merge(&other.others);
        merge(&mut self.proxy, &other.proxy);
        for scope in [0, 1] {
            self.pending[scope].merge(&other.pending[scope]);
            self.fenced[scope].merge(&other.fenced[scope]);
        }
        for (&number, &phase) in &other.phases {
            let known = self.phases.entry(number).or_default();
            *known = phase.max(*known);
        }
    }
}

/// The knowledge that arrivals at a barrier hand over to the waiting warps.
#[derive(Clone, Debug, Default)]
pub(super) struct Handover {
    row: Vec<u32>,
    view: View,
}

impl Handover {
    /// A handover which states that `agent` has reached `clock`.
    pub fn of(agent: usize, clock: u32) -> Handover {
        let mut row = vec![0; agent + 1];
        row[agent] = clock;
        Handover { row, view: View::default() }
    }

    /// This handover, to which `phases` are added.
    pub fn and(mut self, phases: &Phases) -> Handover {
        self.view.phases.clone_from(phases);
        self
    }

    pub fn merge(&mut self, other: &Handover) {
        merge(&mut self.row, &other.row);
        self.view.merge(&other.view);
    }
}

/// Decides whether an earlier access is ordered before the current access of a warp.
pub(super) struct Observer<'b> {
    /// The warp's knowledge of the agents of its block.
    pub row: &'b [u32],
    /// The warp's knowledge of other blocks.
    pub others: &'b Knowledge,
    pub block: u32,
    /// `None` for an access through the generic proxy. For an access through the asynchronous proxy, the
    /// first element has for each agent the clock up to which this proxy sees the agent's writes. The second
    /// element says which agents write through the generic proxy.
    pub proxy: Option<(&'b [u32], Agents)>,
}

impl crate::shadow::Knows for Observer<'_> {
    #[inline]
    fn knows(&self, stamp: &Stamp) -> bool {
        if stamp.block == self.block {
            stamp.clock <= self.row.get(usize::from(stamp.agent)).copied().unwrap_or(0)
        } else {
            stamp.clock <= self.others.of(stamp.block, stamp.agent)
        }
    }

    #[inline]
    fn fenced(&self, write: &Stamp) -> bool {
        let Some((proxy, agents)) = self.proxy else { return true };
        let agent = usize::from(write.agent);
        !agents.generic(agent) || write.clock <= proxy.get(agent).copied().unwrap_or(0)
    }
}

/// The knowledge that was published through one address. `block` has the knowledge for the warps of each
/// block, and `device` has the knowledge for all warps.
#[derive(Debug, Default)]
struct Publication {
    block: BTreeMap<u32, Knowledge>,
    device: Knowledge,
}

/// The knowledge that was published through each address.
#[derive(Debug, Default)]
pub(crate) struct Published(HashMap<u64, Publication>);

impl Published {
    /// Drops the knowledge that block `number`, which has ended, published for its own warps at `addresses`.
    pub fn forget(&mut self, number: u32, addresses: &[u64]) {
        for address in addresses {
            if let Some(publication) = self.0.get_mut(address) {
                publication.block.remove(&number);
            }
        }
    }
}

/// The published knowledge of all blocks of a grid.
pub(crate) type Released = Mutex<Published>;

/// The effect of a strong access on the publications at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touches {
    Read,
    Write,
    /// The access reads and writes, so earlier publications remain.
    ReadAndWrite,
}

impl Block<'_> {
    /// The knowledge that `agent` hands over. Only warps have views.
    pub(super) fn handover(&self, agent: usize) -> Handover {
        let view = self.views.get(agent).cloned().unwrap_or_default();
        Handover { row: self.clocks.row(agent).to_vec(), view }
    }

    pub(super) fn take_over(&mut self, warp: usize, handover: &Handover) {
        self.clocks.join(warp, &handover.row);
        self.views[warp].merge(&handover.view);
    }

    /// The knowledge that a relaxed arrival of `warp` hands over, which is the knowledge at the warp's last
    /// fence.
    pub(super) fn fenced_handover(&self, warp: usize) -> Handover {
        let view = &self.views[warp];
        let fenced = &view.fenced[Scope::Block as usize];
        if fenced.is_empty() {
            return Handover::default();
        }
        let (phases, proxy) = (view.phases.clone(), view.proxy.clone());
        let view = View { others: fenced.clone(), phases, proxy, ..View::default() };
        Handover { row: fenced.row(self.number).to_vec(), view }
    }

    /// Receives a handover in a relaxed wait. The warp's next fence makes the knowledge available.
    pub(super) fn take_over_with_fence(&mut self, warp: usize, handover: &Handover) {
        let mut all = handover.view.others.clone();
        all.add(self.number, &handover.row);
        let view = &mut self.views[warp];
        view.pending[Scope::Block as usize].merge(&all);
        // A write that is visible to the asynchronous proxy stays visible. So this knowledge needs no order,
        // and a relaxed arrival hands it over too.
        merge(&mut view.proxy, &handover.view.proxy);
    }

    fn learn(&mut self, warp: usize, what: &Knowledge) {
        self.clocks.join(warp, what.row(self.number));
        self.views[warp].others.merge(what);
    }

    /// All knowledge that `warp` has now.
    fn snapshot(&self, warp: usize) -> Knowledge {
        let mut all = self.views[warp].others.clone();
        all.add(self.number, self.clocks.row(warp));
        all
    }

    pub(super) fn fence(&mut self, warp: &mut Warp<'_>, scope: Scope) {
        let index = warp.index;
        for reach in 0..=scope as usize {
            let pending = std::mem::take(&mut self.views[index].pending[reach]);
            self.learn(index, &pending);
        }
        let now = self.snapshot(index);
        for reach in 0..=scope as usize {
            self.views[index].fenced[reach] = now.clone();
        }
        self.clocks.tick(index, warp.site);
        // The lanes of a warp share one epoch, so the check cannot distinguish the releasing lane from the
        // acquiring lane.
        warp.epoch += 1;
    }

    /// Executes the acquire and the release of one lane's strong access.
    pub(super) fn communicate(
        &mut self,
        warp: &Warp<'_>,
        published: &mut Published,
        address: u64,
        touches: Touches,
        order: Order,
    ) {
        let (index, device) = (warp.index, order.scope == Scope::Device);
        if touches != Touches::Write
            && let Some(found) = published.0.get(&address)
        {
            let block = found.block.get(&self.number).cloned().unwrap_or_default();
            let wide = if device { found.device.clone() } else { Knowledge::default() };
            if order.acquire {
                self.learn(index, &block);
                self.learn(index, &wide);
            } else {
                self.views[index].pending[Scope::Block as usize].merge(&block);
                self.views[index].pending[Scope::Device as usize].merge(&wide);
            }
        }
        if touches == Touches::Read {
            return;
        }
        if touches == Touches::Write {
            published.0.remove(&address);
        }
        let [block, wide] = if order.release {
            let now = self.snapshot(index);
            self.clocks.tick(index, warp.site);
            [now.clone(), now]
        } else {
            self.views[index].fenced.clone()
        };
        if !block.is_empty() {
            let entry = published.0.entry(address).or_default();
            let own = entry.block.entry(self.number).or_insert_with(|| {
                self.published_at.push(address);
                Knowledge::default()
            });
            own.merge(&block);
            if device {
                entry.device.merge(&wide);
            }
        }
    }
}
