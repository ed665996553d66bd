//! ALiBi (Press, Smith and Lewis, 2022): a head's scores fall with the distance of key and query.
use crate::mask::{MaskFn, Rows};
use attention_tile::load_per_head;
use core::f32::consts::LOG2_E;
use cuda_std::math::{fma, rcp};
use spec::FwdParams;
use tile::Warp;
use tile::mma::{Acc, RowBounds};

/// The slope of a tile's head.
#[derive(Clone, Copy)]
pub struct Alibi {
    /// Whether there are slopes: known from the parameters alone, so that no branch on it diverges.
    wanted: bool,
    /// What a score loses for each key, before it is scaled.
    slope: f32,
}

impl Alibi {
    /// No slopes.
    pub const NONE: Self = Alibi { wanted: false, slope: 0.0 };

    /// That of the head whose rows these are, if slopes are asked for.
    #[inline(always)]
    pub fn of<Mask: MaskFn>(p: &FwdParams, rows: &Rows) -> Self {
        if !Mask::LEFT || p.alibi.base == 0 {
            return Self::NONE;
        }
        let [sequence, head] = rows.of;
        let slope = load_per_head(&p.alibi, sequence, head);
        Alibi { wanted: true, slope: slope * LOG2_E * rcp(p.scale_log2) }
    }

    /// Lets the scores of the rows from `row0` on, and the keys from `key0` on, fall.
    #[inline(always)]
    pub fn subtract<const W: usize, const N: usize>(
        self,
        acc_s: &mut Acc<W, N>,
        rows: &Rows,
        row0: u32,
        key0: u32,
        warp: Warp,
    ) {
        if self.wanted {
            let position = |row| (row0 + row) as i32 + rows.window.shift - key0 as i32;
            let queries = RowBounds::new(position, warp);
            acc_s.map_distances(&queries, |s, distance| fma(distance.abs(), -self.slope, s));
        }
    }
}
