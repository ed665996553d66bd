//! Executes instructions that the lanes of a warp execute together.

use super::{Block, block::Stop, memory::shared_cells, touched::Touched, warp::Warp};
use crate::{
    op::{Matrix, Order, ReduxOp, Shfl, ShflMode, Slot, VoteMode},
    regs::{FULL, LANES, R, Row32, lanes},
    report::Kind,
    shadow,
};

impl<'a> Block<'a> {
    /// The members of a `.sync` instruction, if all of them have arrived. Makes a report if a member is
    /// missing.
    fn members(&mut self, warp: &mut Warp<'a>, row: R, mask: u32, what: &str) -> bool {
        let members = *warp.regs().row32(row, mask);
        // This condition is nearly always true.
        if members.iter().all(|&members| members == mask) {
            return true;
        }
        for lane in lanes(mask) {
            let wanted = members[lane];
            let message = if wanted >> lane & 1 == 0 {
                format!("{what}: lane {lane} is not in its own member mask {wanted:#010x}")
            } else if wanted & warp.live & !mask != 0 {
                let missing = wanted & warp.live & !mask;
                format!(
                    "{what} with members {wanted:#010x}: lanes {missing:#010x} are at another instruction"
                )
            } else if lanes(wanted & mask).any(|other| members[other] != wanted) {
                format!("{what}: the lanes give different member masks")
            } else {
                continue;
            };
            self.report(warp, Kind::DivergentSync, mask, None, message);
            self.stop = Some(Stop::Reported);
            return false;
        }
        true
    }

    pub(super) fn warp_sync(&mut self, warp: &mut Warp<'a>, members: R, mask: u32) {
        if self.members(warp, members, mask, "bar.warp.sync") {
            warp.epoch += 1;
        }
    }

    pub(super) fn shfl(&mut self, warp: &mut Warp<'a>, shfl: &Shfl, mask: u32) {
        if !self.members(warp, shfl.members, mask, "shfl.sync") {
            return;
        }
        let regs = warp.regs();
        let (a, b, c) = (*regs.row32(shfl.a, mask), *regs.row32(shfl.b, mask), *regs.row32(shfl.c, mask));
        let mut d = [0; LANES];
        let (mut p, mut lost) = (0, 0);
        for lane in lanes(mask) {
            let segment = c[lane] >> 8 & 31;
            let (index, clamp, offset) = (lane as u32, c[lane] & 31, b[lane] & 31);
            let low = index & segment;
            let high = low | clamp & !segment;
            let (source, valid) = match shfl.mode {
                ShflMode::Up => (index.wrapping_sub(offset), index as i32 - offset as i32 >= high as i32),
                ShflMode::Down => (index + offset, index + offset <= high),
                ShflMode::Bfly => (index ^ offset, index ^ offset <= high),
                ShflMode::Idx => (low | offset & !segment, (low | offset & !segment) <= high),
            };
            let source = if valid { source as usize % LANES } else { lane };
            d[lane] = a[source];
            p |= u32::from(valid) << lane;
            if mask >> source & 1 == 0 {
                lost |= 1 << lane;
            }
        }
        regs.set32(shfl.d, mask, &d);
        if let Some(register) = shfl.p {
            regs.set_pred(register, mask, p);
        }
        if lost != 0 {
            self.report(
                warp,
                Kind::DivergentSync,
                lost,
                None,
                "shfl.sync reads from a lane that does not take part".into(),
            );
        }
    }

    pub(super) fn vote(
        &mut self,
        warp: &mut Warp<'a>,
        (mode, d, p, negated): (VoteMode, R, R, bool),
        members: R,
        mask: u32,
    ) {
        if !self.members(warp, members, mask, "vote.sync") {
            return;
        }
        let regs = warp.regs();
        let value = regs.pred(p, mask);
        let votes = if negated { !value } else { value } & mask;
        let all = |yes: bool| if yes { mask } else { 0 };
        match mode {
            VoteMode::All => regs.set_pred(d, mask, all(votes == mask)),
            VoteMode::Any => regs.set_pred(d, mask, all(votes != 0)),
            VoteMode::Uni => regs.set_pred(d, mask, all(votes == mask || votes == 0)),
            VoteMode::Ballot => regs.set32(d, mask, &[votes; LANES]),
        }
    }

    pub(super) fn match_any(&mut self, warp: &mut Warp<'a>, d: R, a: Slot, members: R, mask: u32) {
        if !self.members(warp, members, mask, "match.any.sync") {
            return;
        }
        let regs = warp.regs();
        let values = match a {
            Slot::W32(r) => regs.row32(r, mask).map(u64::from),
            Slot::W64(r) => *regs.row64(r, mask),
            Slot::Sink => [0; LANES],
        };
        let same = |lane: usize| {
            lanes(mask)
                .filter(|&other| values[other] == values[lane])
                .fold(0, |bits, other| bits | 1 << other)
        };
        regs.set32(d, mask, &std::array::from_fn(same));
    }

    pub(super) fn redux(&mut self, warp: &mut Warp<'a>, (op, d, a): (ReduxOp, R, R), members: R, mask: u32) {
        if !self.members(warp, members, mask, "redux.sync") {
            return;
        }
        let regs = warp.regs();
        let values = *regs.row32(a, mask);
        let values = lanes(mask).map(|lane| values[lane]);
        let result = values.reduce(|x, y| match op {
            ReduxOp::Add => x.wrapping_add(y),
            ReduxOp::MinU => x.min(y),
            ReduxOp::MaxU => x.max(y),
            ReduxOp::MinS => (x as i32).min(y as i32) as u32,
            ReduxOp::MaxS => (x as i32).max(y as i32) as u32,
            ReduxOp::And => x & y,
            ReduxOp::Or => x | y,
            ReduxOp::Xor => x ^ y,
        });
        regs.set32(d, mask, &[result.unwrap_or(0); LANES]);
    }

    pub(super) fn elect(&mut self, warp: &mut Warp<'a>, d: Option<R>, p: R, members: R, mask: u32) {
        if !self.members(warp, members, mask, "elect.sync") {
            return;
        }
        let leader = mask.trailing_zeros();
        warp.regs().set_pred(p, mask, 1 << leader);
        if let Some(d) = d {
            warp.regs().set32(d, mask, &[leader; LANES]);
        }
    }

    pub(super) fn movmatrix(&mut self, warp: &mut Warp<'a>, d: R, s: R, mask: u32) {
        if !self.converged(warp, mask, "movmatrix.sync.aligned") {
            return;
        }
        let row = *warp.regs().row32(s, FULL);
        let matrix = rows_of(&row);
        let out = std::array::from_fn(|lane| {
            let (r, c) = (lane / 4, lane % 4 * 2);
            u32::from(matrix[c][r]) | u32::from(matrix[c + 1][r]) << 16
        });
        warp.regs().set32(d, FULL, &out);
    }

    /// The offsets in shared memory of the rows of all matrices, indexed by the lane that gives the row's
    /// address. Lanes that give no address have 0.
    fn matrix_rows(
        &mut self,
        warp: &mut Warp<'a>,
        matrix: &Matrix,
        touched: &mut Touched,
        what: &str,
    ) -> Option<[usize; LANES]> {
        let count = 8 * matrix.regs.len();
        let used = if count == LANES { FULL } else { (1 << count) - 1 };
        let addresses = self.addresses(warp, &matrix.addr, used);
        let mut rows = [0; LANES];
        for (lane, &at) in addresses.iter().enumerate().take(count) {
            let (space, within) = self.place(warp, matrix.space, at, 16, lane, what)?;
            if space != crate::ast::Space::Shared {
                let message = format!("{what} needs shared memory, the address is in the {space:?} space");
                self.report(warp, Kind::WrongSpace, 1 << lane, None, message.to_lowercase());
                return None;
            }
            let Some(offset) = self.shared_offset(within, 16) else {
                self.fault(warp, space, within, 16, lane, what);
                return None;
            };
            touched.add(shared_cells(offset), 16, lane, u64::MAX);
            rows[lane] = offset;
        }
        Some(rows)
    }

    pub(super) fn ldmatrix(&mut self, warp: &mut Warp<'a>, matrix: &Matrix, mask: u32) {
        if !self.converged(warp, mask, "ldmatrix.sync.aligned") {
            return;
        }
        let mut touched = self.touched();
        touched.collective = true;
        let rows = self.matrix_rows(warp, matrix, &mut touched, "ldmatrix");
        self.check_access(warp, touched, shadow::Access::Collective, Order::default());
        for (i, &reg) in matrix.regs.iter().enumerate() {
            let mut out: Row32 = [u32::MAX; LANES];
            if let Some(rows) = &rows {
                let mut words = [[0u16; 8]; 8];
                for (words, &row) in words.iter_mut().zip(&rows[8 * i..8 * i + 8]) {
                    for (word, bytes) in words.iter_mut().zip(self.shared[row..row + 16].as_chunks().0) {
                        *word = u16::from_le_bytes(*bytes);
                    }
                }
                for (lane, value) in out.iter_mut().enumerate() {
                    let (r, c) = (lane / 4, lane % 4 * 2);
                    let [low, high] = match matrix.transposed {
                        true => [words[c][r], words[c + 1][r]],
                        false => [words[r][c], words[r][c + 1]],
                    };
                    *value = u32::from(low) | u32::from(high) << 16;
                }
            }
            warp.regs().set32(reg, FULL, &out);
        }
    }

    pub(super) fn stmatrix(&mut self, warp: &mut Warp<'a>, matrix: &Matrix, mask: u32) {
        if !self.converged(warp, mask, "stmatrix.sync.aligned") {
            return;
        }
        let mut touched = self.touched();
        let Some(rows) = self.matrix_rows(warp, matrix, &mut touched, "stmatrix") else { return };
        for (i, &reg) in matrix.regs.iter().enumerate() {
            let row = *warp.regs().row32(reg, FULL);
            for (lane, &value) in row.iter().enumerate() {
                let (r, c) = (lane / 4, lane % 4 * 2);
                for half in 0..2 {
                    let (row, column) = if matrix.transposed { (c + half, r) } else { (r, c + half) };
                    let at = rows[8 * i + row] + 2 * column;
                    self.shared[at..at + 2].copy_from_slice(&((value >> (16 * half)) as u16).to_le_bytes());
                }
            }
        }
        self.check_access(warp, touched, shadow::Access::Write, Order::default());
    }
}

/// Assembles an 8x8 matrix of 16-bit values from its fragment.
fn rows_of(row: &Row32) -> [[u16; 8]; 8] {
    let mut matrix = [[0; 8]; 8];
    for (lane, &value) in row.iter().enumerate() {
        matrix[lane / 4][lane % 4 * 2] = value as u16;
        matrix[lane / 4][lane % 4 * 2 + 1] = (value >> 16) as u16;
    }
    matrix
}
