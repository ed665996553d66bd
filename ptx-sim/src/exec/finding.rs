//! What is found wrong with a memory access, in words.

use super::{Block, warp::Warp};
use crate::{
    ast::Space,
    decode::SHARED_BASE,
    memory::{Allocation, Conflict, Fault, Mode},
    report::{Address, Kind},
    shadow::{self, CELL, HazardKind},
};

impl<'a> Block<'a> {
    /// The address in words.
    pub(super) fn address(&self, space: Space, at: u64) -> Address {
        let simple = |buffer: &str, base: u64| Address { buffer: buffer.into(), offset: at.wrapping_sub(base) as i64 };
        match space {
            Space::Shared => simple("shared", u64::from(SHARED_BASE)),
            Space::Local => simple("local", 0),
            Space::Param => simple("param", 0),
            _ => match self.context.memory.owner(at) {
                Some((_, allocation)) => simple(&allocation.name, allocation.base),
                None => simple("nowhere", 0),
            },
        }
    }

    /// Reports an access of `bytes` bytes that cannot be made.
    pub(super) fn fault(&mut self, warp: &Warp<'a>, space: Space, at: u64, bytes: usize, lane: usize, what: &str) {
        let address = self.address(space, at);
        let (kind, message) = match space {
            Space::Shared | Space::Local | Space::Param => {
                (Kind::OutOfBounds, format!("{what} of {bytes} bytes outside {} memory", address.buffer))
            }
            _ => match self.context.memory.resolve(at, bytes) {
                Err(Fault::Freed(_)) => {
                    (Kind::UseAfterFree, format!("{what} of {bytes} bytes in freed {}", address.buffer))
                }
                Err(Fault::Wild) => {
                    (Kind::OutOfBounds, format!("{what} of {bytes} bytes at {at:#x}, which is in no allocation"))
                }
                _ => {
                    let size = self.context.memory.owner(at).map_or(0, |(_, allocation)| allocation.len);
                    (Kind::OutOfBounds, format!("{what} of {bytes} bytes outside {} of {size} bytes", address.buffer))
                }
            },
        };
        self.report(warp, kind, 1 << lane, Some(address), message);
    }

    pub(super) fn uninitialised_global(&mut self, warp: &Warp<'a>, at: u64, lane: usize) {
        let address = self.address(Space::Global, at);
        let message = format!("read of {}, which nobody has written there", address.buffer);
        self.report(warp, Kind::UninitialisedGlobal, 1 << lane, Some(address), message);
    }

    /// Notes an access to device memory and reports another block's that conflicts with it, unless an acquire orders the two.
    pub(super) fn touch_global(
        &mut self,
        warp: &Warp<'a>,
        allocation: &Allocation,
        (at, offset, bytes): (u64, usize, usize),
        lane: usize,
        mode: Mode,
    ) {
        if !self.context.options.racecheck {
            return;
        }
        let Some(Conflict(other)) = allocation.touch(offset, bytes, self.linear, mode) else { return };
        if mode == Mode::ReadOnly {
            let address = self.address(Space::Global, at);
            let message = "read through the read-only path (.nc) of memory that this launch writes".into();
            return self.report(warp, Kind::ReadOnly, 1 << lane, Some(address), message);
        }
        // Several readers are remembered as "many": where blocks communicate, they may all be ordered.
        if other.map_or(self.context.program.blocks_communicate, |other| self.order.knows(other)) {
            return;
        }
        let other = other.map_or("several other blocks".to_string(), |other| format!("block {other}"));
        let what = match mode {
            Mode::Read | Mode::StrongRead | Mode::ReadOnly => format!("reads what {other} writes"),
            _ => format!("writes what {other} accesses"),
        };
        let address = self.address(Space::Global, at);
        self.report(
            warp,
            Kind::GlobalRace,
            1 << lane,
            Some(address),
            format!("block {} {what}, and nothing orders the two", self.linear),
        );
    }

    pub(super) fn shared_hazard(
        &mut self,
        warp: &Warp<'a>,
        cell: usize,
        mask: u16,
        lanes: u32,
        hazard: shadow::Hazard,
        access: shadow::Access,
    ) {
        let offset = (cell * CELL) as i64 + i64::from(mask.trailing_zeros());
        let address = Address { buffer: "shared".into(), offset };
        let other = hazard.agent % self.context.warps;
        let (kind, message) = match hazard.kind {
            HazardKind::Pending => {
                let what = if access == shadow::Access::Read { "reads" } else { "overwrites" };
                (
                    Kind::PendingCopy,
                    format!(
                        "warp {} {what} bytes that an asynchronous copy of warp {other} is still writing",
                        warp.index
                    ),
                )
            }
            HazardKind::ReadAfterWrite => (
                Kind::ReadAfterWrite,
                format!("warp {} reads what warp {other} wrote, with no barrier between", warp.index),
            ),
            HazardKind::WriteAfterRead => (
                Kind::WriteAfterRead,
                format!("warp {} overwrites what warp {other} reads, with no barrier between", warp.index),
            ),
            HazardKind::WriteAfterWrite => (
                Kind::WriteAfterWrite,
                format!("warps {other} and {} write the same bytes, with no barrier between", warp.index),
            ),
            HazardKind::WarpReadFirst => {
                let message = format!(
                    "a lane of warp {} overwrites what another of its lanes reads, with no bar.warp.sync between",
                    warp.index
                );
                (Kind::WarpRace, message)
            }
            HazardKind::Warp => {
                let message = format!(
                    "a lane of warp {} reads what another of its lanes wrote, with no bar.warp.sync between",
                    warp.index
                );
                (Kind::WarpRace, message)
            }
        };
        self.report_pair(warp, kind, lanes, Some(address), Some(hazard), message);
    }
}
