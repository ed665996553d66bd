//! Loads and stores.

use super::{Block, warp::Warp};
use crate::{
    ast::Space,
    memory::Mode,
    op::{Access, Addr, Extend, Order, Slot},
    regs::{LANES, R, lanes},
    report::{Address, Kind},
    shadow::{self, Actor, CELL, SEVERAL, UNKNOWN, Words},
};

/// Windows of the generic address space, see [`crate::decode`].
const WINDOW_BITS: u32 = 60;

/// Bytes of one cell that one instruction touches.
#[derive(Clone, Copy)]
struct Touch {
    cell: u32,
    mask: u16,
    lanes: u32,
    words: Words,
}

const UNTOUCHED: Touch = Touch { cell: 0, mask: 0, lanes: 0, words: [UNKNOWN; 4] };

/// Cells that one instruction touches, merged over neighbouring lanes.
pub(super) struct Touched {
    cells: [Touch; 2 * LANES],
    n: usize,
    /// By one instruction of the whole warp.
    pub collective: bool,
}

impl Touched {
    pub fn new() -> Touched {
        Touched { cells: [UNTOUCHED; 2 * LANES], n: 0, collective: false }
    }

    /// Adds `bytes` bytes at `offset`, at most two cells.
    pub fn add(&mut self, offset: usize, bytes: usize, lane: usize) {
        let mut at = offset;
        while at < offset + bytes {
            let cell = at / CELL;
            let end = (offset + bytes).min((cell + 1) * CELL);
            let (from, to) = (at - cell * CELL, end - cell * CELL);
            at = end;
            if self.n == 0 || self.cells[self.n - 1].cell as usize != cell {
                if self.n == self.cells.len() {
                    return;
                }
                self.cells[self.n] = Touch { cell: cell as u32, ..UNTOUCHED };
                self.n += 1;
            }
            let touch = &mut self.cells[self.n - 1];
            for (word, owner) in touch.words.iter_mut().enumerate().take(to.div_ceil(4)).skip(from / 4) {
                let earlier = touch.mask >> (4 * word) & 15 != 0;
                let whole = from <= 4 * word && to >= 4 * word + 4;
                *owner = match (self.collective, earlier, whole) {
                    (true, ..) => SEVERAL,
                    (_, false, true) => lane as u8,
                    (_, true, true) => SEVERAL,
                    // Parts of words: known only while one lane has them.
                    (_, false, false) => lane as u8,
                    (_, true, false) if *owner == lane as u8 => *owner,
                    (_, true, false) => UNKNOWN,
                };
            }
            touch.mask |= ((1u32 << to) - (1u32 << from)) as u16;
            touch.lanes |= 1 << lane;
        }
    }
}

/// What one lane accesses.
#[derive(Clone, Copy)]
pub(super) struct LaneAccess {
    pub space: Space,
    pub at: u64,
    pub lane: usize,
    pub mode: Mode,
}

impl<'a> Block<'a> {
    /// Space and address within it that `address` means to an instruction of `space`.
    fn locate(space: Space, address: u64) -> Result<(Space, u64), Space> {
        let within = address & ((1 << WINDOW_BITS) - 1);
        let window = match address >> WINDOW_BITS {
            1 => Space::Shared,
            2 => Space::Local,
            3 => Space::Param,
            _ => Space::Global,
        };
        match space {
            Space::Generic => Ok((window, within)),
            Space::Global | Space::Const if window != Space::Global => Err(window),
            Space::Shared | Space::Local if window != Space::Global || address >> 32 != 0 => Err(window),
            space => Ok((space, address)),
        }
    }

    pub(super) fn is_space(&mut self, warp: &mut Warp<'a>, p: R, addr: &Addr, space: Space, mask: u32) {
        let addresses = self.addresses(warp, addr, mask);
        let value = lanes(mask)
            .filter(|&lane| Self::locate(Space::Generic, addresses[lane]).is_ok_and(|(found, _)| found == space));
        let value = value.fold(0, |bits, lane| bits | 1 << lane);
        warp.regs().set_pred(p, mask, value);
    }

    /// Checks one lane's address: the space it is in and the offset there.
    pub(super) fn place(
        &mut self,
        warp: &Warp<'a>,
        space: Space,
        at: u64,
        bytes: usize,
        lane: usize,
        what: &str,
    ) -> Option<(Space, u64)> {
        let (found, within) = match Self::locate(space, at) {
            Ok(found) => found,
            Err(other) => {
                let other = if other == Space::Global && matches!(space, Space::Shared | Space::Local) {
                    Space::Global
                } else {
                    other
                };
                let address = Self::locate(Space::Generic, at).map(|(space, at)| self.address(space, at)).ok();
                let message =
                    format!("{what} through the {space:?} space with an address of the {other:?} space ({at:#x})");
                self.report(warp, Kind::WrongSpace, 1 << lane, address, message.to_lowercase());
                return None;
            }
        };
        if !within.is_multiple_of(bytes as u64) {
            let address = self.address(found, within);
            let message = format!("{what} of {bytes} bytes at an address that is not a multiple of {bytes}");
            self.report(warp, Kind::Misaligned, 1 << lane, Some(address), message);
            return None;
        }
        Some((found, within))
    }

    /// Reads `out.len()` bytes for one lane; false where nothing could be read.
    pub(super) fn read_lane(
        &mut self,
        warp: &mut Warp<'a>,
        LaneAccess { space, at, lane, mode }: LaneAccess,
        out: &mut [u8],
        touched: &mut Touched,
    ) -> bool {
        let bytes = out.len();
        let Some((space, at)) = self.place(warp, space, at, bytes, lane, "read") else { return false };
        match space {
            Space::Shared => {
                let Some(offset) = self.shared_offset(at, bytes) else {
                    self.fault(warp, space, at, bytes, lane, "read");
                    return false;
                };
                out.copy_from_slice(&self.shared[offset..offset + bytes]);
                touched.add(offset, bytes, lane);
            }
            Space::Local => {
                let size = warp.local_size;
                let Some(at) = usize::try_from(at).ok().filter(|at| at + bytes <= size) else {
                    self.fault(warp, space, at, bytes, lane, "read");
                    return false;
                };
                let range = lane * size + at..lane * size + at + bytes;
                out.copy_from_slice(&warp.local[range.clone()]);
                if warp.local_written[range].contains(&false) {
                    let address = self.address(space, at as u64);
                    self.report(
                        warp,
                        Kind::UninitialisedLocal,
                        1 << lane,
                        Some(address),
                        "read of thread memory that was never written".into(),
                    );
                }
            }
            Space::Param => {
                let params = self.context.params;
                let Some(source) = usize::try_from(at).ok().and_then(|at| params.get(at..at + bytes)) else {
                    self.fault(warp, space, at, bytes, lane, "read");
                    return false;
                };
                out.copy_from_slice(source);
            }
            _ => {
                let memory = self.context.memory;
                let Ok((allocation, offset)) = memory.resolve(at, bytes) else {
                    self.fault(warp, space, at, bytes, lane, "read");
                    return false;
                };
                let missing = allocation.load(offset, out);
                if missing != 0 {
                    self.uninitialised_global(warp, at + u64::from(missing.trailing_zeros()), lane);
                }
                self.touch_global(warp, allocation, (at, offset, bytes), lane, mode);
            }
        }
        true
    }

    /// Writes `data` for one lane.
    pub(super) fn write_lane(
        &mut self,
        warp: &mut Warp<'a>,
        LaneAccess { space, at, lane, mode }: LaneAccess,
        data: &[u8],
        touched: &mut Touched,
    ) {
        let bytes = data.len();
        let Some((space, at)) = self.place(warp, space, at, bytes, lane, "write") else { return };
        match space {
            Space::Shared => {
                let Some(offset) = self.shared_offset(at, bytes) else {
                    return self.fault(warp, space, at, bytes, lane, "write");
                };
                self.shared[offset..offset + bytes].copy_from_slice(data);
                touched.add(offset, bytes, lane);
            }
            Space::Local => {
                let size = warp.local_size;
                let Some(at) = usize::try_from(at).ok().filter(|at| at + bytes <= size) else {
                    return self.fault(warp, space, at, bytes, lane, "write");
                };
                let range = lane * size + at..lane * size + at + bytes;
                warp.local[range.clone()].copy_from_slice(data);
                warp.local_written[range].fill(true);
            }
            Space::Param => {
                let address = self.address(space, at);
                self.report(warp, Kind::ReadOnly, 1 << lane, Some(address), "write to the kernel's parameters".into());
            }
            _ => {
                let memory = self.context.memory;
                let Ok((allocation, offset)) = memory.resolve(at, bytes) else {
                    return self.fault(warp, space, at, bytes, lane, "write");
                };
                if allocation.read_only || space == Space::Const {
                    let address = self.address(space, at);
                    self.report(warp, Kind::ReadOnly, 1 << lane, Some(address), "write to constant memory".into());
                    return;
                }
                allocation.store(offset, data);
                self.touch_global(warp, allocation, (at, offset, bytes), lane, mode);
            }
        }
    }

    pub(super) fn load(&mut self, warp: &mut Warp<'a>, access: &Access, mask: u32) {
        let addresses = self.addresses(warp, &access.addr, mask);
        let (bytes, n) = (access.bytes as usize, access.slots.len());
        let mut values = [[0u64; LANES]; 8];
        let mut touched = Touched::new();
        let mut data = [0u8; 64];
        let mode = match access {
            Access { read_only: true, .. } => Mode::ReadOnly,
            access if access.order.strong => Mode::StrongRead,
            _ => Mode::Read,
        };
        for lane in lanes(mask) {
            let data = &mut data[..bytes * n];
            data.fill(0);
            let one = LaneAccess { space: access.space, at: addresses[lane], lane, mode };
            self.read_lane(warp, one, data, &mut touched);
            for (value, raw) in values.iter_mut().zip(data.chunks_exact(bytes)) {
                let mut wide = [0; 8];
                wide[..bytes].copy_from_slice(raw);
                let raw = u64::from_le_bytes(wide);
                let shift = 64 - 8 * bytes as u32;
                value[lane] = if access.extend == Extend::Sign { ((raw << shift) as i64 >> shift) as u64 } else { raw };
            }
        }
        self.shared_access(warp, &touched, shadow::Access::Read);
        self.communicate_lanes(access.space, &addresses, access.order, false, mask);
        for (slot, values) in access.slots.iter().zip(&values) {
            set_slot(warp, *slot, mask, values);
        }
    }

    pub(super) fn store(&mut self, warp: &mut Warp<'a>, access: &Access, mask: u32) {
        let addresses = self.addresses(warp, &access.addr, mask);
        let (bytes, n) = (access.bytes as usize, access.slots.len());
        let mut values = [[0u64; LANES]; 8];
        for (slot, values) in access.slots.iter().zip(&mut values) {
            *values = get_slot(warp, *slot, mask);
        }
        self.communicate_lanes(access.space, &addresses, access.order, true, mask);
        let mut touched = Touched::new();
        let mode = if access.order.strong { Mode::Atomic } else { Mode::Write };
        let mut data = [0u8; 64];
        for lane in lanes(mask) {
            for (value, out) in values.iter().zip(data.chunks_exact_mut(bytes)).take(n) {
                out.copy_from_slice(&value[lane].to_le_bytes()[..bytes]);
            }
            let one = LaneAccess { space: access.space, at: addresses[lane], lane, mode };
            self.write_lane(warp, one, &data[..bytes * n], &mut touched);
        }
        self.shared_access(warp, &touched, shadow::Access::Write);
    }

    /// Race and initialisation checks for the shared memory that an instruction touched.
    pub(super) fn shared_access(&mut self, warp: &mut Warp<'a>, touched: &Touched, access: shadow::Access) {
        let options = &self.context.options;
        let (race, init) = (options.racecheck, options.initcheck);
        for &Touch { cell, mask, lanes, words } in &touched.cells[..touched.n] {
            let cell = cell as usize;
            let actor =
                Actor { warp: warp.index, words, epoch: warp.epoch, site: warp.site, collective: touched.collective };
            if race && let Some(hazard) = self.shadow.access(&self.clocks, cell, mask, actor, access) {
                self.shared_hazard(warp, cell, mask, lanes, hazard, access);
            } else if init && access != shadow::Access::Write && access != shadow::Access::Copy {
                let missing = self.shadow.missing(cell, mask);
                if missing != 0 {
                    let offset = (cell * CELL) as i64 + i64::from(missing.trailing_zeros());
                    let address = Address { buffer: "shared".into(), offset };
                    self.report(
                        warp,
                        Kind::UninitialisedShared,
                        lanes,
                        Some(address),
                        "read of shared memory that nobody has written".into(),
                    );
                }
            }
            if access != shadow::Access::Read {
                self.shadow.initialise(cell, mask);
            }
            self.protect_mbarriers(warp, cell, mask, lanes);
        }
    }

    /// Orders blocks through the device-memory accesses of the lanes of `mask`.
    pub(super) fn communicate_lanes(
        &mut self,
        space: Space,
        addresses: &[u64; LANES],
        order: Order,
        writes: bool,
        mask: u32,
    ) {
        if !order.strong || space == Space::Shared || !self.context.program.blocks_communicate {
            return;
        }
        for lane in lanes(mask).filter(|&lane| addresses[lane] >> WINDOW_BITS == 0) {
            self.communicate(addresses[lane], writes, order.acquire, order.release);
        }
    }
}

pub(super) fn set_slot(warp: &mut Warp<'_>, slot: Slot, mask: u32, values: &[u64; LANES]) {
    match slot {
        Slot::W32(r) => warp.regs().set32(r, mask, &values.map(|value| value as u32)),
        Slot::W64(r) => warp.regs().set64(r, mask, values),
        Slot::Sink => {}
    }
}

pub(super) fn get_slot(warp: &mut Warp<'_>, slot: Slot, mask: u32) -> [u64; LANES] {
    match slot {
        Slot::W32(r) => warp.regs().row32(r, mask).map(u64::from),
        Slot::W64(r) => *warp.regs().row64(r, mask),
        Slot::Sink => [0; LANES],
    }
}
