//! Random appends and merges.
use super::cases::{dtype, head_dim};
use super::{Drawn, Limits, below, one_in, pick};
use crate::append::{AppendCase, Lies, RotaryCase, Scales};
use crate::inputs::Random;
use crate::merge::{Lie, MergeCase};
use crate::subject::Task;
use ferroflash::DType;
use ferroflash::request::{LseUnit, RotaryStyle};

pub(super) fn append(random: &mut Random, limits: Limits) -> Drawn {
    let own = dtype(random);
    let eight = one_in(random, 2);
    let scales = [Scales::One, Scales::Values(random.normal().abs() as f32 + 1e-3, 2.0), Scales::Heads];
    let head_dim = head_dim(random) * if eight { 2 } else { 1 };
    let heads = 1 + below(random, limits.heads);
    if one_in(random, 12) {
        return scaled(random, limits);
    }
    let cache = match (eight, head_dim) {
        (false, _) => own,
        (true, ..=256) => pick(random, &[DType::E4m3, DType::Int8]),
        (true, _) => DType::E4m3,
    };
    let case = AppendCase {
        dtypes: [own, cache],
        lies: pick(
            random,
            &[Lies::Nhd, Lies::Hnd, Lies::Interleaved { hnd: false }, Lies::Interleaved { hnd: true }],
        ),
        heads,
        head_dim,
        pages: [1 + below(random, 40), 1 + below(random, 64)],
        tokens: [1 + below(random, limits.seqlen), below(random, 9)],
        wide: one_in(random, 2),
        scales: if cache == DType::E4m3 { pick(random, &scales) } else { Scales::One },
        rotary: (head_dim >= 16 && one_in(random, 2)).then(|| rotary(random, head_dim, heads)),
        seed: random.bits(),
    };
    (Task::Append(case), case.to_string())
}

/// Draws an append to a latent cache whose rows have their own scales.
fn scaled(random: &mut Random, limits: Limits) -> Drawn {
    let heads = 1 + below(random, 2);
    let dims = 16 * (1 + below(random, 4));
    let columns = [512 + 8 * below(random, (64 - dims) / 8 + 1), dims];
    let rotary = one_in(random, 2).then(|| RotaryCase { columns, ..rotary(random, 64, heads) });
    let case = AppendCase {
        dtypes: [DType::Bf16, DType::E4m3Scaled],
        lies: Lies::Latent(512),
        heads,
        head_dim: 576,
        pages: [1 + below(random, 20), 1 + below(random, 20)],
        tokens: [1 + below(random, limits.seqlen.min(60)), below(random, 9)],
        wide: one_in(random, 2),
        scales: Scales::One,
        rotary,
        seed: random.bits(),
    };
    (Task::Append(case), case.to_string())
}

/// Draws a rotation of heads of `head_dim` columns, 16 or more.
fn rotary(random: &mut Random, head_dim: usize, heads: usize) -> RotaryCase {
    let dims = 16 * (1 + below(random, head_dim / 16));
    RotaryCase {
        style: pick(random, &[RotaryStyle::Halves, RotaryStyle::Interleaved]),
        columns: [8 * below(random, (head_dim - dims) / 8 + 1), dims],
        rows: 1 + below(random, 100),
        wide: one_in(random, 2),
        together: one_in(random, 2),
        wide_positions: one_in(random, 2),
        query_heads: one_in(random, 2).then(|| heads * (1 + below(random, 4))),
        in_place: one_in(random, 2),
    }
}

pub(super) fn merge(random: &mut Random, limits: Limits) -> Drawn {
    let types = [DType::F16, DType::Bf16, DType::F32].map(|own| [own; 2]);
    let narrowed = [[DType::F32, DType::F16], [DType::F32, DType::Bf16]];
    let all = [&types[..], &narrowed].concat();
    let (dtypes, states) = (pick(random, &all), 1 + below(random, 9));
    let units = [(); 2].map(|()| pick(random, &[LseUnit::Natural, LseUnit::Two]));
    let rows = (limits.seqlen / states).clamp(1, 200);
    let case = MergeCase {
        dtypes,
        shape: [1 + below(random, 3), 1 + below(random, rows), 1 + below(random, 6), head_dim(random)],
        states,
        lie: pick(random, &[Lie::Apart, Lie::SideBySide]),
        units,
        sinks: states == 1 || one_in(random, 2),
        place_of: (dtypes[0] == dtypes[1] && one_in(random, 2)).then(|| below(random, states)),
        seed: random.bits(),
    };
    (Task::Merge(case), case.to_string())
}
