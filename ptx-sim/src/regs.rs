//! The registers of a warp. A register is a row of 32 lanes, with a mask of the lanes that were written.

use std::cell::{Cell, RefCell};

/// Number of lanes of a warp.
pub(crate) const LANES: usize = 32;
/// A mask of all lanes.
pub(crate) const FULL: u32 = u32::MAX;

pub(crate) type Row32 = [u32; LANES];
pub(crate) type Row64 = [u64; LANES];

/// The value of a 32-bit register that was never written.
const UNWRITTEN32: Row32 = [u32::MAX; LANES];
/// The value of a 64-bit register that was never written.
const UNWRITTEN64: Row64 = [u64::MAX; LANES];

/// The registers of one call frame. Constants are rows too, and follow the declared registers.
#[derive(Debug)]
pub(crate) struct Regs {
    /// The values. A row of which no lane was written has values of an ended frame; see [`Regs::peek32`].
    r32: Vec<Row32>,
    r64: Vec<Row64>,
    pred: Vec<u32>,
    pub init32: Vec<u32>,
    init64: Vec<u32>,
    init_pred: Vec<u32>,
    /// A mask of the lanes in which an instruction has read a register that was never written. The executor
    /// clears this mask.
    pub missing: Cell<u32>,
    /// For each 32-bit register, whether a product in flight reads or writes it.
    pub flying: Vec<bool>,
    /// The last register of a product in flight that an instruction has accessed. The executor clears it.
    pub disturbed: Cell<Option<R>>,
    /// The number of `wgmma.fence`s that the warp has executed.
    pub fences: u32,
    /// For each 32-bit register, the number of `wgmma.fence`s before the last access.
    pub touched: Vec<Cell<u32>>,
}

/// The index of a register row. The type of the instruction selects the register file.
pub(crate) type R = u32;

thread_local! {
    /// The rows of ended frames. A kernel has thousands of registers, and most of a small launch's time would
    /// go into filling new rows: 14 % in tests of batch invariance (measured by `perf`).
    static SPARE: RefCell<Vec<(Vec<Row32>, Vec<Row64>)>> = const { RefCell::new(Vec::new()) };
}

/// The number of ended frames whose rows a thread keeps: the warps of two large blocks.
const MOST_SPARE: usize = 32;

impl Drop for Regs {
    fn drop(&mut self) {
        let rows = (std::mem::take(&mut self.r32), std::mem::take(&mut self.r64));
        // While a thread ends, it keeps nothing.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < MOST_SPARE {
                spare.push(rows);
            }
        });
    }
}

impl Regs {
    /// Registers that were never written. Without `checks`, they count as written.
    pub fn new([n32, n64, n_pred]: [u32; 3], checks: bool) -> Regs {
        let [n32, n64, n_pred] = [n32, n64, n_pred].map(|n| n as usize);
        let (mut r32, mut r64) = SPARE.with(|spare| spare.borrow_mut().pop()).unwrap_or_default();
        if !checks {
            r32.clear();
            r64.clear();
        }
        r32.resize(n32, UNWRITTEN32);
        r64.resize(n64, UNWRITTEN64);
        let init = if checks { 0 } else { FULL };
        Regs {
            r32,
            r64,
            pred: vec![0; n_pred],
            init32: vec![init; n32],
            init64: vec![init; n64],
            init_pred: vec![init; n_pred],
            missing: Cell::default(),
            flying: vec![false; n32],
            disturbed: Cell::default(),
            fences: 0,
            touched: vec![Cell::new(u32::MAX); n32],
        }
    }

    /// The values of a register, without a note of the access.
    #[inline]
    pub fn peek32(&self, r: R) -> &Row32 {
        if self.init32[r as usize] == 0 { &UNWRITTEN32 } else { &self.r32[r as usize] }
    }

    #[inline]
    fn peek64(&self, r: R) -> &Row64 {
        if self.init64[r as usize] == 0 { &UNWRITTEN64 } else { &self.r64[r as usize] }
    }

    /// The row of a register, for changes of single lanes, without a note of the access.
    #[inline]
    pub fn lanes32(&mut self, r: R) -> &mut Row32 {
        let row = &mut self.r32[r as usize];
        if self.init32[r as usize] == 0 {
            *row = UNWRITTEN32;
        }
        row
    }

    #[inline]
    fn lanes64(&mut self, r: R) -> &mut Row64 {
        let row = &mut self.r64[r as usize];
        if self.init64[r as usize] == 0 {
            *row = UNWRITTEN64;
        }
        row
    }

    #[inline]
    fn blend32(&mut self, r: R, mask: u32, new: &Row32) {
        if mask == FULL {
            self.r32[r as usize] = *new;
        } else {
            blend(self.lanes32(r), mask, new);
        }
    }

    #[inline]
    fn blend64(&mut self, r: R, mask: u32, new: &Row64) {
        if mask == FULL {
            self.r64[r as usize] = *new;
        } else {
            blend(self.lanes64(r), mask, new);
        }
    }

    #[inline]
    fn touch(&self, r: R) {
        if self.flying[r as usize] {
            self.disturbed.set(Some(r));
        }
        self.touched[r as usize].set(self.fences);
    }

    #[inline]
    fn note(&self, init: u32, mask: u32) {
        self.missing.set(self.missing.get() | mask & !init);
    }

    #[inline]
    pub fn row32(&self, r: R, mask: u32) -> &Row32 {
        self.note(self.init32[r as usize], mask);
        self.touch(r);
        self.peek32(r)
    }

    #[inline]
    pub fn row64(&self, r: R, mask: u32) -> &Row64 {
        self.note(self.init64[r as usize], mask);
        self.peek64(r)
    }

    pub fn pred(&self, r: R, mask: u32) -> u32 {
        self.note(self.init_pred[r as usize], mask);
        self.pred[r as usize]
    }

    #[inline]
    pub fn set32(&mut self, r: R, mask: u32, row: &Row32) {
        self.touch(r);
        self.blend32(r, mask, row);
        self.init32[r as usize] |= mask;
    }

    #[inline]
    pub fn set64(&mut self, r: R, mask: u32, row: &Row64) {
        self.blend64(r, mask, row);
        self.init64[r as usize] |= mask;
    }

    pub fn set_pred(&mut self, r: R, mask: u32, value: u32) {
        self.init_pred[r as usize] |= mask;
        let old = &mut self.pred[r as usize];
        *old = *old & !mask | value & mask;
    }

    /// Copies a register and the mask of its written lanes. PTX may move undefined values, but may not use
    /// them otherwise.
    pub fn move32(&mut self, d: R, s: R, mask: u32) {
        self.touch(s);
        self.touch(d);
        let (row, init) = (*self.peek32(s), self.init32[s as usize]);
        self.blend32(d, mask, &row);
        let old = &mut self.init32[d as usize];
        *old = *old & !mask | init & mask;
    }

    /// [`Self::move32`] for 64-bit registers.
    pub fn move64(&mut self, d: R, s: R, mask: u32) {
        let (row, init) = (*self.peek64(s), self.init64[s as usize]);
        self.blend64(d, mask, &row);
        let old = &mut self.init64[d as usize];
        *old = *old & !mask | init & mask;
    }

    /// [`Self::move32`] for predicates.
    pub fn move_pred(&mut self, d: R, s: R, mask: u32) {
        let (value, init) = (self.pred[s as usize], self.init_pred[s as usize]);
        let old = &mut self.pred[d as usize];
        *old = *old & !mask | value & mask;
        let old = &mut self.init_pred[d as usize];
        *old = *old & !mask | init & mask;
    }
}

fn blend<T: Copy>(old: &mut [T; LANES], mask: u32, new: &[T; LANES]) {
    for lane in lanes(mask) {
        old[lane] = new[lane];
    }
}

/// The lanes in `mask`, in ascending order.
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(lane)
    })
}

/// A register file. The register file also determines the form of the literals of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pred,
    B32,
    F32,
    B64,
    F64,
}

/// A type of values that live in a register.
pub(crate) trait Lane: Copy + Default {
    /// The storage for 32 lanes.
    type Row: Copy;
    /// The register file of this type's operands, and the form of its literals.
    const KIND: Kind;
    fn row(regs: &Regs, r: R, mask: u32) -> Self::Row;
    fn get(row: &Self::Row, lane: usize) -> Self;
    fn build(f: impl FnMut(usize) -> Self) -> Self::Row;
    fn store(regs: &mut Regs, r: R, mask: u32, row: &Self::Row);
}

macro_rules! lane {
    ($($t:ty: $raw:ty, $read:ident, $write:ident, $row:ty, $kind:ident, |$x:ident| $from:expr,
        |$y:ident| $to:expr;)*) => { $(
        impl Lane for $t {
            type Row = $row;
            const KIND: Kind = Kind::$kind;
            #[inline(always)]
            fn row(regs: &Regs, r: R, mask: u32) -> $row {
                *regs.$read(r, mask)
            }
            #[inline(always)]
            fn get(row: &$row, lane: usize) -> $t {
                let $x = row[lane];
                $from
            }
            #[inline(always)]
            fn build(mut f: impl FnMut(usize) -> $t) -> $row {
                let mut row = [0; LANES];
                for (lane, raw) in row.iter_mut().enumerate() {
                    let $y = f(lane);
                    *raw = $to;
                }
                row
            }
            #[inline(always)]
            fn store(regs: &mut Regs, r: R, mask: u32, row: &$row) {
                regs.$write(r, mask, row);
            }
        }
    )* };
}

lane! {
    u32: u32, row32, set32, Row32, B32, |x| x, |y| y;
    i32: u32, row32, set32, Row32, B32, |x| x as i32, |y| y as u32;
    f32: u32, row32, set32, Row32, F32, |x| f32::from_bits(x), |y| y.to_bits();
    u16: u32, row32, set32, Row32, B32, |x| x as u16, |y| u32::from(y);
    // A value that is narrower than its register is zero-extended or sign-extended, as its type requires.
    i16: u32, row32, set32, Row32, B32, |x| x as i16, |y| i32::from(y) as u32;
    u8: u32, row32, set32, Row32, B32, |x| x as u8, |y| u32::from(y);
    i8: u32, row32, set32, Row32, B32, |x| x as i8, |y| i32::from(y) as u32;
    u64: u64, row64, set64, Row64, B64, |x| x, |y| y;
    i64: u64, row64, set64, Row64, B64, |x| x as i64, |y| y as u64;
    f64: u64, row64, set64, Row64, F64, |x| f64::from_bits(x), |y| y.to_bits();
}

impl Lane for bool {
    type Row = u32;
    const KIND: Kind = Kind::Pred;
    #[inline(always)]
    fn row(regs: &Regs, r: R, mask: u32) -> u32 {
        regs.pred(r, mask)
    }
    #[inline(always)]
    fn get(row: &u32, lane: usize) -> bool {
        row >> lane & 1 != 0
    }
    #[inline(always)]
    fn build(mut f: impl FnMut(usize) -> bool) -> u32 {
        (0..LANES).fold(0, |row, lane| row | u32::from(f(lane)) << lane)
    }
    #[inline(always)]
    fn store(regs: &mut Regs, r: R, mask: u32, row: &u32) {
        regs.set_pred(r, mask, *row);
    }
}

/// The operands of an ALU instruction: the destination, and up to four sources.
pub(crate) type Args = [R; 5];
/// The function of an ALU instruction, which reads and writes whole rows under a mask.
pub(crate) type Run = fn(&mut Regs, &Args, u32);

/// An ALU instruction, with the register kinds of its operands.
#[derive(Clone, Copy)]
pub(crate) struct Alu {
    pub run: Run,
    pub d: Kind,
    pub s: &'static [Kind],
}

/// Builds an [`Alu`] from the function of one lane:
macro_rules! alu {
    ($d:ty => |$($x:ident: $t:ty),*| $e:expr) => {{
        #[allow(unused_assignments, unused_mut, unused_variables, clippy::unnecessary_cast,
            clippy::redundant_closure_call)]
        fn run(regs: &mut $crate::regs::Regs, args: &$crate::regs::Args, mask: u32) {
            use $crate::regs::Lane;
            let mut at = 0;
            $( at += 1; let $x = <$t as Lane>::row(regs, args[at], mask); )*
            let row = <$d as Lane>::build(|lane| {
                $( let $x = <$t as Lane>::get(&$x, lane); )*
                $e
            });
            <$d as Lane>::store(regs, args[0], mask, &row);
        }
        $crate::regs::Alu {
            run,
            d: <$d as $crate::regs::Lane>::KIND,
            s: const { &[$(<$t as $crate::regs::Lane>::KIND),*] },
        }
    }};
}
pub(crate) use alu;
