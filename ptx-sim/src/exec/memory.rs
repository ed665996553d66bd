//! Executes loads and stores.

use super::{
    Block,
    order::Touches,
    touched::{SHARED_CELLS, Touched},
    warp::Warp,
};
use crate::{
    ast::Space,
    memory::POISON,
    op::{Access, Addr, Extend, Slot},
    regs::{LANES, R, Row64, lanes},
    report::Kind,
    shadow::{self, CELL},
};

/// Number of address bits within a window of the generic address space (see [`crate::decode`]).
pub(super) const WINDOW_BITS: u32 = 60;

/// Largest number of elements that one lane loads or stores.
const MOST: usize = 8;

/// Calls `load_of` or `store_of` for the sizes of an access: the bytes and the number of its elements. Usual
/// accesses have both as constants, the others the bytes and [`MOST`].
macro_rules! of_sizes {
    ($block:ident.$of:ident($warp:ident, $access:ident, $mask:ident)) => {
        match ($access.bytes, $access.slots.len()) {
            (2, 1) => $block.$of::<2, 1>($warp, $access, 1, $mask),
            (4, 1) => $block.$of::<4, 1>($warp, $access, 1, $mask),
            (4, 2) => $block.$of::<4, 2>($warp, $access, 2, $mask),
            (4, 4) => $block.$of::<4, 4>($warp, $access, 4, $mask),
            (8, 1) => $block.$of::<8, 1>($warp, $access, 1, $mask),
            (8, 2) => $block.$of::<8, 2>($warp, $access, 2, $mask),
            (1, n) => $block.$of::<1, MOST>($warp, $access, n, $mask),
            (2, n) => $block.$of::<2, MOST>($warp, $access, n, $mask),
            (4, n) => $block.$of::<4, MOST>($warp, $access, n, $mask),
            (_, n) => $block.$of::<8, MOST>($warp, $access, n, $mask),
        }
    };
}

/// The access of one lane.
#[derive(Clone, Copy)]
pub(super) struct LaneAccess {
    pub space: Space,
    pub at: u64,
    pub lane: usize,
}

impl<'a> Block<'a> {
    /// The state space, and the address in this space, to which an instruction of `space` resolves `address`.
    #[inline]
    pub(super) fn locate(space: Space, address: u64) -> Result<(Space, u64), Space> {
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
        let value = lanes(mask).filter(|&lane| {
            Self::locate(Space::Generic, addresses[lane]).is_ok_and(|(found, _)| found == space)
        });
        let value = value.fold(0, |bits, lane| bits | 1 << lane);
        warp.regs().set_pred(p, mask, value);
    }

    /// Checks one lane's address. Returns the state space of the address, and the offset in this space.
    #[inline]
    pub(super) fn place(
        &mut self,
        warp: &Warp<'a>,
        space: Space,
        at: u64,
        bytes: usize,
        lane: usize,
        what: &str,
    ) -> Option<(Space, u64)> {
        match Self::locate(space, at) {
            Ok((found, within)) if within & (bytes as u64 - 1) == 0 => Some((found, within)),
            found => {
                self.misplaced(warp, (space, at), found, bytes, lane, what);
                None
            }
        }
    }

    /// Reports an address that lies in another state space, or that is not a multiple of `bytes` (a power of
    /// two).
    #[cold]
    fn misplaced(
        &mut self,
        warp: &Warp<'a>,
        (space, at): (Space, u64),
        found: Result<(Space, u64), Space>,
        bytes: usize,
        lane: usize,
        what: &str,
    ) {
        let (kind, address, message) = match found {
            Ok((found, within)) => (
                Kind::Misaligned,
                Some(self.address(found, within)),
                format!("{what} of {bytes} bytes at an address that is not a multiple of {bytes}"),
            ),
            Err(other) => {
                let address = Self::locate(Space::Generic, at).map(|(space, at)| self.address(space, at));
                let message = format!(
                    "{what} through the {space:?} space with an address of the {other:?} space ({at:#x})"
                );
                (Kind::WrongSpace, address.ok(), message.to_lowercase())
            }
        };
        self.report(warp, kind, 1 << lane, address, message);
    }

    /// Reads `out.len()` bytes for one lane. Returns false if it could not read.
    #[inline(always)]
    pub(super) fn read_lane(
        &mut self,
        warp: &mut Warp<'a>,
        LaneAccess { space, at, lane }: LaneAccess,
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
                touched.add(shared_cells(offset), bytes, lane, 0);
            }
            Space::Local => {
                let size = warp.local_size;
                let Some(at) = usize::try_from(at).ok().filter(|at| at + bytes <= size) else {
                    self.fault(warp, space, at, bytes, lane, "read");
                    return false;
                };
                let range = lane * size + at..lane * size + at + bytes;
                out.copy_from_slice(&warp.local[range.clone()]);
                let written = &warp.local_written[range];
                if written.contains(&false) {
                    let unwritten = out.iter_mut().zip(written).filter(|(_, written)| !**written);
                    unwritten.for_each(|(byte, _)| *byte = POISON);
                    let address = self.address(space, at as u64);
                    self.report(
                        warp,
                        Kind::UninitialisedLocal,
                        1 << lane,
                        Some(address),
                        "read of local memory that was never written".into(),
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
                touched.add(at, bytes, lane, 0);
                self.follows_wait(warp, at, bytes, lane, false);
            }
        }
        true
    }

    /// Writes `data` for one lane.
    #[inline(always)]
    pub(super) fn write_lane(
        &mut self,
        warp: &mut Warp<'a>,
        LaneAccess { space, at, lane }: LaneAccess,
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
                let changed = differences(&self.shared[offset..offset + bytes], data);
                self.shared[offset..offset + bytes].copy_from_slice(data);
                touched.add(shared_cells(offset), bytes, lane, changed);
                self.moved |= changed != 0;
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
                self.report(
                    warp,
                    Kind::ReadOnly,
                    1 << lane,
                    Some(address),
                    "write to the kernel's parameters".into(),
                );
            }
            _ => {
                let memory = self.context.memory;
                let Ok((allocation, offset)) = memory.resolve(at, bytes) else {
                    return self.fault(warp, space, at, bytes, lane, "write");
                };
                if allocation.read_only || space == Space::Const {
                    let address = self.address(space, at);
                    self.report(
                        warp,
                        Kind::ReadOnly,
                        1 << lane,
                        Some(address),
                        "write to constant memory".into(),
                    );
                    return;
                }
                self.follows_wait(warp, at, bytes, lane, true);
                let changed = allocation.store(offset, data);
                touched.add(at, bytes, lane, changed);
                self.moved |= changed != 0;
            }
        }
    }

    pub(super) fn load(&mut self, warp: &mut Warp<'a>, access: &Access, mask: u32) {
        of_sizes!(self.load_of(warp, access, mask));
    }

    /// Loads `n` elements of `BYTES` bytes per lane. The compiler knows the sizes of the usual accesses, and
    /// needs no calls to copy them.
    #[inline(always)]
    fn load_of<const BYTES: usize, const N: usize>(
        &mut self,
        warp: &mut Warp<'a>,
        access: &Access,
        n: usize,
        mask: u32,
    ) {
        let addresses = self.addresses(warp, &access.addr, mask);
        let mut values = [[0u64; LANES]; N];
        let mut touched = self.touched();
        for lane in lanes(mask) {
            let mut data = [[0; BYTES]; N];
            let one = LaneAccess { space: access.space, at: addresses[lane], lane };
            self.read_lane(warp, one, data[..n].as_flattened_mut(), &mut touched);
            for (value, raw) in values.iter_mut().zip(data) {
                let mut wide = [0; 8];
                wide[..BYTES].copy_from_slice(&raw);
                let raw = u64::from_le_bytes(wide);
                let shift = 64 - 8 * BYTES as u32;
                value[lane] =
                    if access.extend == Extend::Sign { ((raw << shift) as i64 >> shift) as u64 } else { raw };
            }
        }
        let kind = if access.read_only { shadow::Access::ReadOnly } else { shadow::Access::Read };
        self.check_access(warp, touched, kind, access.order);
        self.speak_all(warp, access, &addresses, Touches::Read, mask);
        for (slot, values) in access.slots.iter().zip(&values) {
            set_slot(warp, *slot, mask, values);
        }
    }

    pub(super) fn store(&mut self, warp: &mut Warp<'a>, access: &Access, mask: u32) {
        of_sizes!(self.store_of(warp, access, mask));
    }

    /// Stores `n` elements of `BYTES` bytes per lane: see [`Self::load_of`].
    #[inline(always)]
    fn store_of<const BYTES: usize, const N: usize>(
        &mut self,
        warp: &mut Warp<'a>,
        access: &Access,
        n: usize,
        mask: u32,
    ) {
        let addresses = self.addresses(warp, &access.addr, mask);
        let mut values = [[0u64; LANES]; N];
        for (slot, values) in access.slots.iter().zip(&mut values) {
            *values = get_slot(warp, *slot, mask);
        }
        let mut touched = self.touched();
        for lane in lanes(mask) {
            let mut data = [[0; BYTES]; N];
            for (value, out) in values.iter().zip(&mut data) {
                out.copy_from_slice(&value[lane].to_le_bytes()[..BYTES]);
            }
            let one = LaneAccess { space: access.space, at: addresses[lane], lane };
            self.write_lane(warp, one, data[..n].as_flattened(), &mut touched);
        }
        self.check_access(warp, touched, shadow::Access::Write, access.order);
        self.speak_all(warp, access, &addresses, Touches::Write, mask);
    }

    /// Lets the access of each lane order warps, if it is strong.
    fn speak_all(
        &mut self,
        warp: &Warp<'a>,
        access: &Access,
        addresses: &Row64,
        touches: Touches,
        mask: u32,
    ) {
        if access.order.strong {
            for lane in lanes(mask) {
                self.speak(warp, (access.space, addresses[lane]), touches, access.order);
            }
        }
    }
}

/// The index of the cell at byte `offset` of shared memory, among all cells.
pub(super) fn shared_cells(offset: usize) -> u64 {
    SHARED_CELLS * CELL as u64 + offset as u64
}

/// A mask of the bytes at which `old` and `new` differ.
fn differences(old: &[u8], new: &[u8]) -> u64 {
    old.iter().zip(new).enumerate().fold(0, |bits, (i, (a, b))| bits | u64::from(a != b) << i)
}

pub(super) fn set_slot(warp: &mut Warp<'_>, slot: Slot, mask: u32, values: &[u64; LANES]) {
    match slot {
        Slot::W32(r) => {
            let mut row = [0; LANES];
            row.iter_mut().zip(values).for_each(|(lane, value)| *lane = *value as u32);
            warp.regs().set32(r, mask, &row);
        }
        Slot::W64(r) => warp.regs().set64(r, mask, values),
        Slot::Sink => {}
    }
}

pub(super) fn get_slot(warp: &mut Warp<'_>, slot: Slot, mask: u32) -> [u64; LANES] {
    match slot {
        Slot::W32(r) => {
            let mut row = [0; LANES];
            row.iter_mut().zip(warp.regs().row32(r, mask)).for_each(|(lane, value)| *lane = (*value).into());
            row
        }
        Slot::W64(r) => *warp.regs().row64(r, mask),
        Slot::Sink => [0; LANES],
    }
}
