//! Checks the accesses of an instruction for races and for uninitialised memory.

use super::{
    Block,
    knowledge::Knowledge,
    order::{Observer, Touches},
    touched::{SHARED_CELLS, Touch, Touched},
    warp::Warp,
};
use crate::{
    ast::Space,
    memory::{PAGE_CELLS, page_shadow},
    op::Order,
    report::{Address, Kind},
    shadow::{Access, CELL, Hazard, HazardKind},
    stamp::{Stamp, UNKNOWN},
};

/// An accessor that is not a warp: TMA or a tensor core, which access memory through the asynchronous proxy.
#[derive(Clone, Copy)]
pub(super) struct Engine<'k> {
    pub agent: usize,
    pub clock: u32,
    /// The engine's knowledge of the agents of its block.
    pub row: &'k [u32],
    /// The engine's knowledge of other blocks, or `None` for the warp's current knowledge.
    pub others: Option<&'k Knowledge>,
    /// The writes of the block's agents that the engine's proxy sees, or `None` if the access needs no proxy
    /// fence.
    pub proxy: Option<&'k [u32]>,
}

impl<'a> Block<'a> {
    /// Checks and records the cells that one instruction touched.
    pub(super) fn check_access(
        &mut self,
        warp: &mut Warp<'a>,
        touched: Touched,
        access: Access,
        order: Order,
    ) {
        self.check_engine(warp, None, touched, access, order);
    }

    /// Checks and records an access of `warp` itself, or of an engine.
    pub(super) fn check_engine(
        &mut self,
        warp: &mut Warp<'a>,
        engine: Option<Engine<'_>>,
        touched: Touched,
        access: Access,
        order: Order,
    ) {
        let (race, init) = (self.context.options.racecheck, self.context.options.initcheck);
        let stamp = Stamp {
            block: self.number,
            agent: engine.map_or(warp.index, |engine| engine.agent) as u16,
            strength: order.into(),
            words: [UNKNOWN; 4],
            clock: engine.map_or_else(|| self.clocks.now(warp.index), |engine| engine.clock),
            site: warp.site,
            epoch: warp.epoch,
            pending: false,
        };
        let observer = Observer {
            row: engine.map_or_else(|| self.clocks.row(warp.index), |engine| engine.row),
            others: engine.and_then(|it| it.others).unwrap_or(self.views[warp.index].others()),
            block: self.number,
            proxy: engine.and_then(|engine| engine.proxy).map(|proxy| (proxy, self.agents)),
        };
        let mut hazards = Vec::new();
        let mut page = None;
        for touch in touched.cells() {
            // An atomic access does not split the records of neighbouring bytes.
            let bytes = (touch.mask, if access == Access::Atomic { touch.mask } else { touch.changed });
            let mut hazard = None;
            if let Some(cell) = touch.cell.checked_sub(SHARED_CELLS) {
                let cell = cell as usize;
                if race {
                    hazard = self.shadow.access(&observer, cell, bytes, &stamp, touch.words, access);
                }
                let reads = access.reads() || access == Access::Atomic;
                if init && hazard.is_none() && reads && touch.mask & !self.written[cell] != 0 {
                    hazards.push((*touch, None));
                }
                if !access.reads() {
                    self.written[cell] |= touch.mask;
                }
            } else if race {
                let number = touch.cell / PAGE_CELLS;
                if page.as_ref().is_none_or(|(last, _)| *last != number) {
                    // This line releases the lock, so that the code never holds two locks.
                    drop(page.take());
                    page = self.context.memory.shadow(touch.cell).map(|shadow| (number, shadow));
                }
                if let Some((_, shadow)) = &mut page {
                    let shadow = shadow.get_or_insert_with(|| page_shadow(self.context.readers()));
                    let cell = (touch.cell % PAGE_CELLS) as usize;
                    hazard = shadow.access(&observer, cell, bytes, &stamp, touch.words, access);
                }
            }
            if race && touch.clash && access == Access::Write {
                hazard = hazard.or_else(|| Hazard::of(HazardKind::LanesWrite, &stamp));
            }
            if hazard.is_some() {
                hazards.push((*touch, hazard));
            }
        }
        drop(page);
        for (touch, hazard) in hazards {
            match hazard {
                Some(hazard) => self.report_hazard(warp, touch, *hazard, access),
                None => self.report_uninitialised(warp, touch),
            }
        }
        self.protect_mbarriers(warp, &touched);
        self.spare.push(touched.room());
    }

    /// An empty set of touched cells.
    pub(super) fn touched(&mut self) -> Touched {
        Touched::new(self.spare.pop())
    }

    fn report_uninitialised(&mut self, warp: &Warp<'a>, touch: Touch) {
        let missing = touch.mask & !self.written[(touch.cell - SHARED_CELLS) as usize];
        let address = self.cell_address(touch.cell, missing);
        let message = "read of shared memory that was never written".into();
        self.report(warp, Kind::UninitialisedShared, touch.lanes, Some(address), message);
    }

    /// The address of the first byte that `mask` marks in `cell`, for reports.
    fn cell_address(&self, cell: u64, mask: u16) -> Address {
        let at = cell * CELL as u64 + u64::from(mask.trailing_zeros());
        match at.checked_sub(SHARED_CELLS * CELL as u64) {
            Some(offset) => Address { buffer: "shared".into(), offset: offset as i64 },
            None => self.address(Space::Global, at),
        }
    }

    fn report_hazard(&mut self, warp: &Warp<'a>, touch: Touch, hazard: Hazard, access: Access) {
        let Hazard { kind, first } = hazard;
        let shared = touch.cell >= SHARED_CELLS;
        let address = self.cell_address(touch.cell, touch.mask);
        let number = |agent: u16| self.warp_of(agent.into());
        let (one, other) = match (shared, first.block == self.number) {
            (true, _) => (format!("warp {}", warp.index), self.agent_name(first.agent.into())),
            (_, true) => (
                format!("warp {} of block {}", warp.index, self.number),
                format!("warp {} of this block", number(first.agent)),
            ),
            _ => (
                format!("warp {} of block {}", warp.index, self.number),
                format!("warp {} of block {}", number(first.agent), first.block),
            ),
        };
        let order =
            if shared { "with no barrier between the two" } else { "and nothing orders the two accesses" };
        let message = match kind {
            HazardKind::Pending => {
                let what = if access.reads() { "reads" } else { "overwrites" };
                format!("{one} {what} bytes that an asynchronous copy of {other} is still writing")
            }
            HazardKind::ReadAfterWrite => format!("{one} reads bytes that {other} wrote, {order}"),
            HazardKind::WriteAfterRead => format!("{one} overwrites bytes that {other} reads, {order}"),
            HazardKind::WriteAfterWrite => {
                format!("{one} and {other} write different values to the same bytes, {order}")
            }
            HazardKind::Proxy => format!(
                "{one} accesses bytes through the asynchronous proxy that {other} wrote through the generic \
                 proxy, with no fence.proxy.async between"
            ),
            HazardKind::Written if access.reads() => {
                format!("{one} reads bytes through the read-only path (.nc) that this launch writes")
            }
            HazardKind::Written => {
                format!("{one} writes bytes that {other} reads through the read-only path (.nc)")
            }
            HazardKind::LaneReads => {
                format!("a lane of {one} reads bytes that another lane wrote, with no bar.warp.sync between")
            }
            HazardKind::LaneOverwrites => format!(
                "a lane of {one} overwrites bytes that another lane reads, with no bar.warp.sync between"
            ),
            HazardKind::LanesWrite => format!(
                "two lanes of {one} write different values to the same bytes, without bar.warp.sync \
                 between the two"
            ),
        };
        let kind = match kind {
            HazardKind::Written => Kind::ReadOnly,
            HazardKind::Proxy => Kind::MissingProxyFence,
            _ if !shared => Kind::GlobalRace,
            HazardKind::Pending => Kind::PendingCopy,
            HazardKind::ReadAfterWrite => Kind::ReadAfterWrite,
            HazardKind::WriteAfterRead => Kind::WriteAfterRead,
            HazardKind::WriteAfterWrite => Kind::WriteAfterWrite,
            HazardKind::LaneReads | HazardKind::LaneOverwrites | HazardKind::LanesWrite => Kind::WarpRace,
        };
        self.report_pair(warp, kind, touch.lanes, Some(address), Some(first), message);
    }

    /// Lets a strong access of one lane order warps: see [`super::order`].
    pub(super) fn speak(
        &mut self,
        warp: &Warp<'a>,
        (space, at): (Space, u64),
        touches: Touches,
        order: Order,
    ) {
        if !order.strong {
            return;
        }
        match Self::locate(space, at) {
            Ok((Space::Shared, at)) => {
                let mut published = std::mem::take(&mut self.published);
                self.communicate(warp, &mut published, at, touches, order);
                self.published = published;
            }
            Ok((Space::Global | Space::Generic, at)) => {
                let mut released = crate::exec::lock(self.context.released);
                self.communicate(warp, &mut released, at, touches, order);
            }
            _ => {}
        }
    }
}
