//! The cells of shared and device memory that one instruction accesses.

use crate::{
    regs::LANES,
    shadow::CELL,
    stamp::{SEVERAL, UNKNOWN, Words},
};

/// The number of the first cell of shared memory. Cells are numbered by generic address.
pub(super) const SHARED_CELLS: u64 = (1 << super::memory::WINDOW_BITS) / CELL as u64;

/// The bytes of one cell that one instruction touches.
#[derive(Clone, Copy)]
pub(super) struct Touch {
    /// The address, divided by [`CELL`].
    pub cell: u64,
    pub mask: u16,
    /// A mask of the bytes whose values a write changes.
    pub changed: u16,
    pub lanes: u32,
    pub words: Words,
    /// Whether two lanes write different values to the same byte.
    pub clash: bool,
}

const UNTOUCHED: Touch = Touch { cell: 0, mask: 0, changed: 0, lanes: 0, words: [UNKNOWN; 4], clash: false };

/// The cells that one instruction touches. If neighbouring lanes touch one cell, the set has one entry for
/// them.
pub(super) struct Touched {
    /// The cells, at most [`MOST`] of them.
    cells: Vec<Touch>,
    /// Whether the instruction is an instruction of the whole warp.
    pub collective: bool,
}

/// Largest number of cells: two per lane.
const MOST: usize = 2 * LANES;

impl Touched {
    /// An empty set. The set uses the buffer of an earlier set, if there is one.
    pub fn new(room: Option<Vec<Touch>>) -> Touched {
        let mut cells = room.unwrap_or_else(|| Vec::with_capacity(MOST));
        cells.clear();
        Touched { cells, collective: false }
    }

    /// The buffer of this set, for another set.
    pub fn room(self) -> Vec<Touch> {
        self.cells
    }

    pub fn cells(&self) -> &[Touch] {
        &self.cells
    }

    /// Adds `bytes` bytes at `address`, which lie in at most two cells. The access changes the bytes in
    /// `changed`.
    pub fn add(&mut self, address: u64, bytes: usize, lane: usize, changed: u64) {
        let cell = address / CELL as u64;
        let fresh = self.cells.last().is_none_or(|last| last.cell != cell);
        // In fast kernels, most accesses take this branch.
        if bytes == CELL && address.is_multiple_of(CELL as u64) && fresh && self.cells.len() < MOST {
            let words = [if self.collective { SEVERAL } else { lane as u8 }; 4];
            let (mask, changed, lanes) = (u16::MAX, changed as u16, 1 << lane);
            self.cells.push(Touch { cell, mask, changed, lanes, words, clash: false });
            return;
        }
        let (mut at, last) = (address, address + bytes as u64);
        while at < last {
            let cell = at / CELL as u64;
            let end = last.min((cell + 1) * CELL as u64);
            let (from, to) = ((at % CELL as u64) as usize, (end - cell * CELL as u64) as usize);
            let mask = ((1u32 << to) - (1u32 << from)) as u16;
            let changed = ((changed >> (at - address)) << from) as u16 & mask;
            at = end;
            if self.cells.last().is_none_or(|last| last.cell != cell) {
                if self.cells.len() == MOST {
                    return;
                }
                self.cells.push(Touch { cell, ..UNTOUCHED });
            }
            let Some(touch) = self.cells.last_mut() else { return };
            for (word, owner) in touch.words.iter_mut().enumerate().take(to.div_ceil(4)).skip(from / 4) {
                let earlier = touch.mask >> (4 * word) & 15 != 0;
                let whole = from <= 4 * word && to >= 4 * word + 4;
                *owner = match (self.collective, earlier, whole) {
                    (true, ..) => SEVERAL,
                    (_, true, _) if *owner == lane as u8 => *owner,
                    (_, false, true) => lane as u8,
                    (_, true, true) => SEVERAL,
                    // If lanes touch only parts of a word, the lane of the word is known only if one lane
                    // touches all of these parts.
                    (_, false, false) => lane as u8,
                    (_, true, false) => UNKNOWN,
                };
            }
            touch.clash |= touch.mask & changed != 0 && touch.lanes & !(1 << lane) != 0;
            touch.mask |= mask;
            touch.changed |= changed;
            touch.lanes |= 1 << lane;
        }
    }
}
