//! ALiBi (Press, Smith and Lewis, 2022): a head's scores fall with the distance between key and query.
use crate::capped::Capped;
use crate::rows::Sequence;
use crate::variant::blocks::At;
use attention_tile::load_per_head;
use core::f32::consts::LOG2_E;
use cuda_std::math::{fma, rcp};
use tile::mma::{Acc, RowBounds};

/// The slope of a work tile's head.
#[derive(Clone, Copy)]
pub struct Alibi {
    /// Whether the problem has slopes. The parameters alone determine this flag, so no branch on it diverges.
    wanted: bool,
    /// The amount that a score loses per key of distance, before scaling.
    slope: f32,
}

impl Alibi {
    /// A problem without slopes.
    const NONE: Self = Alibi { wanted: false, slope: 0.0 };

    /// The slope of the head, if the problem has slopes.
    #[inline(always)]
    pub fn of(p: &impl Capped, of: &Sequence) -> Self {
        let Some(slopes) = p.alibi() else { return Self::NONE };
        if slopes.base() == 0 {
            return Self::NONE;
        }
        let slope = load_per_head(slopes, of.at);
        Alibi { wanted: true, slope: slope * LOG2_E * rcp(p.scale_log2()) }
    }

    /// Subtracts from each score the loss of its distance.
    #[inline(always)]
    pub fn subtract<const W: usize, const N: usize>(self, acc_s: &mut Acc<W, N>, at: At) {
        if self.wanted {
            let At { rows, row0, key0, warp } = at;
            let position = |row| (row0 + row) as i32 + rows.window.shift - key0 as i32;
            let queries = RowBounds::new(position, warp);
            acc_s.map_distances(&queries, |s, distance| fma(distance.abs(), -self.slope, s));
        }
    }
}
