//! Stages that TMA fills with elements of eight bits, and that converter warps convert in place.
//!
//! A stored row has as many columns as a converted row or fewer, but always 128 bytes, the bytes of one panel
//! row. TMA writes stored rows into the *last* panel of the stage: columns that a row does not have become
//! zero. A warp then reads eight rows, and writes them to all panels. It overwrites only the rows that it has
//! read, so the conversion needs no other shared memory and no barrier but the warp's.
//!
//! A stage has a third mbarrier, *landed*, for the bytes of TMA. *full* has one arrival for each converter
//! warp.
//!
//! | step | agent | waits for | then |
//! |---|---|---|---|
//! | copy | lanes of the producer warp | *empty* | TMA completes *landed* |
//! | convert | converter warps | *landed* | `fence.proxy.async`, arrival at *full* |
//! | product | consumer warpgroups | *full* | arrival at *empty* |
use crate::Steps;
use crate::pipeline::mbarrier::PipelineState;
use crate::pipeline::{Producer, StageConverter};
use crate::shared::{ConvertTo, SharedLayout, SharedTile};
use crate::tma::{ConvertedTma, MapKind, TmaTensor};
use contract::Element;
use cuda_std::memory::{ld_shared_b32, ld_shared_v4_b32, st_shared_b32, st_shared_v4_b32};
use cuda_std::{mbarrier, tma};

/// Base tiles per row of a stored tile: 128 columns of eight bits fill a panel row.
pub(crate) const STORED: usize = 8;
/// Rows that a warp converts at once.
const ROWS: u32 = 8;
/// Bytes of a panel row.
const ROW_BYTES: u32 = 128;
/// Chunks of a stored row that one panel of converted rows takes.
const ACROSS: u32 = 4;
/// Most panels of a converted tile: a stored row has the columns of two.
const MOST_PANELS: usize = 2;

/// The row, of eight, and the chunk, of four, that a lane converts. Eight lanes that access shared memory
/// together have rows `r` and `r ^ 5`: the swizzle then puts their stored chunks and their converted chunks
/// on different banks.
#[inline(always)]
const fn place(lane: u32) -> [u32; 2] {
    [(lane / 8) ^ (lane / 4 % 2 * 5), lane % ACROSS]
}

/// Byte offset, in eight stored rows, of a lane's chunk for panel `panel`.
#[inline(always)]
pub(super) const fn source(lane: u32, panel: u32) -> u32 {
    let [row, chunk] = place(lane);
    row * ROW_BYTES + ((panel * ACROSS + chunk) ^ row) * 16
}

/// Byte offset, in eight rows of a panel, of the first of the two chunks that a lane writes. The second is at
/// the offset with bit 4 flipped.
#[inline(always)]
pub(super) const fn target(lane: u32) -> u32 {
    let [row, chunk] = place(lane);
    row * ROW_BYTES + ((2 * chunk) ^ row) * 16
}

impl<T: SharedLayout, const S: usize> PipelineState<T, S> {
    /// The mbarrier of the stage's copies.
    #[inline(always)]
    fn landed(&self) -> u32 {
        self.base + (S * (T::BYTES + 2 * mbarrier::BYTES)) as u32 + self.stage * 2 * mbarrier::BYTES as u32
    }
    /// The address of the word that is 1 if no stage follows.
    #[inline(always)]
    fn end(&self) -> u32 {
        self.landed() + mbarrier::BYTES as u32
    }
    /// Initialises what a stage has for converter warps.
    ///
    /// # Safety
    /// - The preconditions of [`mbarrier::init`] hold for the bytes behind the barriers of the stages.
    #[inline(always)]
    pub(crate) unsafe fn init_landed(&self) {
        // SAFETY: the caller keeps the preconditions.
        unsafe {
            mbarrier::init(self.landed(), 1);
            st_shared_b32(self.end(), 0);
        }
    }
}

impl<E: Element, F: ConvertTo<E>, M: MapKind, const R: usize, const C: usize, const S: usize>
    Producer<SharedTile<E, R, C>, S, ConvertedTma<F, M>>
{
    /// Waits until the next stage is empty, then starts the copies of this lane's boxes, from column `column`
    /// on.
    #[inline(always)]
    pub fn load(&mut self, from: &TmaTensor<F, R, STORED, M>, column: u32, boxes: M::Boxes) {
        const { StageConverter::<SharedTile<E, R, C>, S, ConvertedTma<F, M>>::IS_POSSIBLE }
        let (state, lane) = (self.packed(), self.warp.lane);
        let bytes = SharedTile::<F, R, STORED>::BYTES as u32;
        let to = state.address() + SharedTile::<E, R, C>::BYTES as u32 - bytes;
        // SAFETY: `specialize` has initialised both mbarriers, and all lanes of a warp have a producer. After
        // the wait, all consumers have left the stage, or none has had it yet. The phase's only arrival
        // expects the bytes of all copies.
        unsafe {
            mbarrier::wait_parity(state.empty().address, state.parity ^ 1);
            if lane == 0 {
                mbarrier::arrive_expect_tx(state.landed(), bytes);
            }
            from.load_boxes(to, column, boxes, state.landed(), lane);
        }
        let last = self.state.stage == 2 * S as u32 - 1;
        self.state.stage = if last { 0 } else { self.state.stage + 1 };
    }

    /// The state of the next stage. This producer packs stage and parity, because a warp that looks up pages
    /// has no registers left.
    #[inline(always)]
    fn packed(&self) -> PipelineState<SharedTile<E, R, C>, S> {
        PipelineState::packed(self.state.base, self.state.stage)
    }

    /// Tells converter warps that no stage follows.
    #[inline(always)]
    pub fn finish(self) {
        let state = self.packed();
        if self.warp.lane == 0 {
            // SAFETY: `specialize` has initialised the mbarriers. When the stage is empty, converter warps
            // have read the word of its previous round, and have left the previous phase of *landed*. The
            // arrival makes the word visible.
            unsafe {
                mbarrier::wait_parity(state.empty().address, state.parity ^ 1);
                st_shared_b32(state.end(), 1);
                mbarrier::arrive(state.landed());
            }
        }
    }
}

impl<E: Element, F: ConvertTo<E>, M: MapKind, const R: usize, const C: usize, const S: usize>
    StageConverter<SharedTile<E, R, C>, S, ConvertedTma<F, M>>
{
    /// Panels of the converted tile.
    const PANELS: usize = SharedTile::<E, R, C>::PANELS as usize;
    /// Fails to compile for tiles that no warp can convert in place.
    const IS_POSSIBLE: () = {
        assert!(F::BYTES == 1 && E::BYTES == 2, "eight bits become sixteen");
        assert!(F::FACTOR == 1.0, "the conversion must be exact, without a factor");
        assert!(SharedTile::<E, R, C>::PANEL_COLUMNS == 64, "a converted panel row has 128 bytes");
        assert!(Self::PANELS <= MOST_PANELS, "a stored row has the columns of at most two panels");
    };

    /// Waits until TMA has filled the next stage, converts this warp's share of its rows, and gives the stage
    /// to the consumers. Returns false if no stage follows.
    #[inline(always)]
    pub fn convert(&mut self) -> bool {
        let (stage, lane) = (self.state.address(), self.warp.lane);
        // SAFETY: `specialize` has initialised the mbarrier and the word. The producer writes the word only
        // before an arrival for which this warp has waited.
        let is_end = unsafe {
            mbarrier::wait_parity(self.state.landed(), self.state.parity);
            ld_shared_b32(self.state.end())
        };
        if self.warp.uniform(is_end) == 1 {
            return false;
        }
        let (warps, bytes) = (ConvertedTma::<F, M>::WARPS, ROWS * ROW_BYTES);
        let end = stage + SharedTile::<E, R, C>::PANEL_BYTES;
        for eight in (Steps { at: stage + self.warp.index * bytes, step: warps * bytes, end }) {
            let words = self.load(eight);
            // All lanes have read these rows before a lane overwrites them.
            self.warp.sync();
            self.store(eight, words);
        }
        // `wgmma` reads these bytes, and later TMA writes there.
        tma::fence_proxy_async();
        self.warp.sync();
        // SAFETY: each converter warp arrives once per phase, and the phase cannot end without this arrival.
        unsafe { mbarrier::arrive_if(self.state.full().address, lane == 0) }
        self.state.advance();
        true
    }

    /// Loads this lane's chunks of the eight stored rows whose place in the first panel is `eight`.
    #[inline(always)]
    fn load(&self, eight: u32) -> [[u32; 4]; MOST_PANELS] {
        let last = (Self::PANELS as u32 - 1) * SharedTile::<E, R, C>::PANEL_BYTES;
        let mut words = [[0; 4]; MOST_PANELS];
        for panel in 0..Self::PANELS {
            let from = eight + last + source(self.warp.lane, panel as u32);
            // SAFETY: a chunk of rows that TMA has written, and that only this warp writes after that.
            words[panel] = unsafe { ld_shared_v4_b32(from) };
        }
        words
    }

    /// Converts these chunks and stores them to the eight rows of every panel.
    #[inline(always)]
    fn store(&self, eight: u32, words: [[u32; 4]; MOST_PANELS]) {
        for panel in 0..Self::PANELS {
            let to = eight + panel as u32 * SharedTile::<E, R, C>::PANEL_BYTES + target(self.warp.lane);
            let [[a, b], [c, d], [e, f], [g, h]] = words[panel].map(F::convert);
            // SAFETY: chunks of this warp's rows. Consumers read them only after all converter warps have
            // arrived at *full*.
            unsafe {
                st_shared_v4_b32(to, [a, b, c, d]);
                st_shared_v4_b32(to ^ 16, [e, f, g, h]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::layout::{CHUNK, conflict_degree, offset};
    use std::collections::HashSet;
    use std::vec::Vec;

    /// Lanes read each chunk of eight stored rows once, where TMA has written it, and write the two chunks of
    /// its columns.
    #[test]
    fn lanes_convert_each_chunk_once_without_bank_conflicts() {
        for panel in 0..MOST_PANELS as u32 {
            let mut written = HashSet::new();
            for lane in 0..32 {
                let [row, chunk] = place(lane);
                assert_eq!(source(lane, panel), offset(ROWS, 8, row, panel * ACROSS + chunk));
                for half in 0..2 {
                    let to = target(lane) ^ (half * 16);
                    assert_eq!(to, offset(ROWS, 8, row, 2 * chunk + half));
                    assert!(written.insert(to));
                }
            }
            assert_eq!(written.len() as u32, ROWS * ROW_BYTES / CHUNK);
            for first in (0..32).step_by(8) {
                let lanes = first..first + 8;
                let from: Vec<_> = lanes.clone().map(|lane| source(lane, panel)).collect();
                let to: Vec<_> = lanes.map(target).collect();
                assert_eq!([conflict_degree(&from), conflict_degree(&to)], [1; 2]);
            }
        }
    }
}
