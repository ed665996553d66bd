//! The data that a bulk copy moves: the rows of a tensor's box, or a range of bytes.

use super::*;
use crate::{
    exec::knowledge::Knowledge,
    op::{AtomicOp, AtomicType},
    tensor_map::{ElementType, Row, Swizzle, Tiled},
};

/// The bulk copy of one lane.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub lane: usize,
    pub site: u32,
    /// The address in shared memory.
    at: u32,
    /// The rows in device memory.
    pub rows: Vec<Row>,
    row_bytes: u32,
    swizzle: Swizzle,
    fill: u64,
    /// The element type, if the copy moves a box of a tensor.
    pub element: Option<ElementType>,
}

/// A load in flight, and the phase of its mbarrier in which it lands.
#[derive(Debug)]
pub(crate) struct Load {
    pub copy: Copy,
    pub warp: usize,
    pub mbar: u32,
    pub phase: u64,
}

/// A store in flight.
#[derive(Debug)]
pub(crate) struct Store {
    pub copy: Copy,
    /// The warp's knowledge of its own block and of other blocks, when the store was issued.
    pub row: Vec<u32>,
    pub others: Knowledge,
    /// The reduction that combines the stored bytes with the bytes in device memory.
    pub reduction: Option<(AtomicOp, AtomicType)>,
    /// Number of groups that the lane had committed before.
    pub group: u32,
    /// Index of the store among the warp's stores.
    pub number: u32,
    /// Whether the bytes have been written. Even then, the checks treat the store as in flight.
    pub landed: bool,
}

impl Copy {
    pub fn bytes(&self) -> u32 {
        self.row_bytes * self.rows.len() as u32
    }

    /// The content of a row that lies outside of the tensor.
    pub fn blank(&self) -> Vec<u8> {
        self.fill.to_le_bytes().into_iter().cycle().take(self.row_bytes as usize).collect()
    }

    /// The offsets in shared memory of one row's 16-byte chunks.
    pub fn row_chunks(&self, row: usize) -> impl Iterator<Item = usize> {
        let start = self.at + row as u32 * self.row_bytes;
        let swizzle = self.swizzle;
        (start..start + self.row_bytes)
            .step_by(CELL)
            .map(move |at| (swizzle.apply(at) - SHARED_BASE) as usize)
    }

    /// The offsets in shared memory of all rows' 16-byte chunks.
    pub fn chunks(&self) -> impl Iterator<Item = usize> {
        (0..self.rows.len()).flat_map(|row| self.row_chunks(row))
    }
}

/// The cells that contain the `bytes` bytes at `address`.
pub(super) fn cells(address: u64, bytes: u32) -> impl Iterator<Item = (u64, usize)> {
    let end = address.saturating_add(u64::from(bytes));
    let mut at = address;
    std::iter::from_fn(move || {
        let next = end.min((at / CELL as u64 + 1) * CELL as u64);
        let part = (at < end).then(|| (at, (next - at) as usize));
        at = next;
        part
    })
}

impl<'a> Block<'a> {
    /// The copy of one lane between `region` and the address `at` in shared memory. Reports the copy if it is
    /// invalid.
    pub(super) fn copy(
        &mut self,
        warp: &mut Warp<'a>,
        region: &Region,
        at: u64,
        lane: usize,
    ) -> Option<Copy> {
        let copy = self.region(warp, region, lane)?;
        let align = if copy.element.is_some() { 128 } else { 16 };
        let space = if at >> 32 != 0 { Space::Generic } else { Space::Shared };
        let what = "a bulk copy's place in shared memory";
        let at = self.aligned(warp, (space, at), align, lane, what)?;
        if self.shared_offset(at, copy.bytes() as usize).is_none() {
            self.fault(warp, Space::Shared, at, copy.bytes() as usize, lane, "bulk copy");
            return None;
        }
        Some(Copy { at: at as u32, ..copy })
    }

    /// The device memory of one lane's copy. The result lacks the address in shared memory, which the caller
    /// adds.
    pub(super) fn region(&mut self, warp: &mut Warp<'a>, region: &Region, lane: usize) -> Option<Copy> {
        let site = warp.site;
        match region {
            Region::Tensor { map, at: coordinates } => {
                let map = self.addresses(warp, map, 1 << lane)[lane];
                let tiled = self.tensor_map(warp, map, lane)?;
                if tiled.dims.len() != coordinates.len() {
                    let message = format!("{} coordinates for {tiled}", coordinates.len());
                    self.report(warp, Kind::BulkCopy, 1 << lane, None, message);
                    return None;
                }
                if tiled.bytes() > 1 << 20 {
                    let message = format!("shared memory cannot hold a box of {tiled}");
                    self.report(warp, Kind::OutOfBounds, 1 << lane, None, message);
                    return None;
                }
                let coordinate = |&row: &u32| warp.regs().row32(row, 1 << lane)[lane] as i32;
                let coordinates: Vec<i32> = coordinates.iter().map(coordinate).collect();
                let Tiled { swizzle, fill, .. } = tiled;
                let (rows, row_bytes) = (tiled.rows(&coordinates), tiled.row_bytes());
                Some(Copy { lane, site, at: 0, rows, row_bytes, swizzle, fill, element: Some(tiled.element) })
            }
            Region::Bytes { addr, bytes } => {
                let address = self.addresses(warp, addr, 1 << lane)[lane];
                let bytes = warp.regs().row32(*bytes, 1 << lane)[lane];
                if !bytes.is_multiple_of(16) || bytes == 0 {
                    let message = format!("a bulk copy moves a multiple of 16 bytes, not {bytes}");
                    self.report(warp, Kind::BulkCopy, 1 << lane, None, message);
                    return None;
                }
                self.aligned(warp, (Space::Global, address), 16, lane, "a bulk copy's address")?;
                let (rows, swizzle) = (vec![Row { address, skip: 0, bytes }], Swizzle::None);
                Some(Copy { lane, site, at: 0, rows, row_bytes: bytes, swizzle, fill: 0, element: None })
            }
        }
    }

    /// The address within its state space, if the address is a multiple of `align`.
    fn aligned(
        &mut self,
        warp: &Warp<'a>,
        (space, at): (Space, u64),
        align: u64,
        lane: usize,
        what: &str,
    ) -> Option<u64> {
        let (space, within) = self.place(warp, space, at, 1, lane, what)?;
        if within.is_multiple_of(align) {
            return Some(within);
        }
        let address = self.address(space, within);
        let message = format!("{what} must be a multiple of {align}");
        self.report(warp, Kind::Misaligned, 1 << lane, Some(address), message);
        None
    }

    /// The tensor map at a generic address, if there is one.
    pub(super) fn tensor_map(&mut self, warp: &mut Warp<'a>, at: u64, lane: usize) -> Option<Tiled> {
        let (space, within) = self.place(warp, Space::Generic, at, 1, lane, "a tensor map")?;
        let aligned = within.is_multiple_of(64) && (space != Space::Param || self.context.param_align >= 64);
        if !aligned {
            let address = self.address(space, within);
            let message = "a tensor map must be aligned to 64 bytes".into();
            self.report(warp, Kind::Misaligned, 1 << lane, Some(address), message);
        }
        let mut bytes = [0; 128];
        let mut unchecked = self.touched();
        for (part, out) in bytes.chunks_exact_mut(64).enumerate() {
            let access = LaneAccess { space: Space::Generic, at: at.wrapping_add(64 * part as u64), lane };
            if aligned && !self.read_lane(warp, access, out, &mut unchecked) {
                return None;
            }
        }
        let found = Tiled::decode(&bytes);
        if found.is_none() && aligned {
            let address: Address = self.address(space, within);
            self.report(
                warp,
                Kind::BulkCopy,
                1 << lane,
                Some(address),
                "the bytes at this address are not a tensor map".into(),
            );
        }
        found
    }
}
