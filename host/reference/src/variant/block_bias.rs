//! Compares the biases of blocks (`ScoreMod::block_bias`) with the scores one by one. Launches have few
//! tokens, and a block may have a bias only far away. The functions run at any distance.
use super::exact::heads;
use super::report::At;
use super::{Case, Failure};
use kernels_gpu::capped::Uncapped;
use kernels_gpu::exact::{Copied, MaskFn, Sequence};
use kernels_gpu::variant::Scores;
use kernels_gpu::variant::block_bias::BlockBias;

/// Queries of a warp and keys of a block.
const BLOCKS: [[i32; 2]; 3] = [[16, 32], [32, 32], [32, 64]];

/// The first position behind near blocks.
const NEAR: i32 = 256;

/// The first positions and the first keys of blocks: near ones, and then powers of two.
fn starts() -> impl Iterator<Item = i32> + Clone {
    (0..NEAR).step_by(16).chain((8..20).map(|bits| 1 << bits))
}

/// Checks that a block's bias is what each score of the block gets: all scores of near blocks, and the scores
/// at the corners of other blocks.
pub(super) fn is_right<M: MaskFn>(
    case: &Case,
    params: &M::Params,
    copies: Vec<Copied>,
) -> Result<(), Failure> {
    if !M::Scores::BLOCK_BIAS {
        return Ok(());
    }
    heads(case, copies, |of| {
        let scores = M::scores(&Uncapped, params, of);
        for (first, key) in starts().flat_map(|first| starts().map(move |key| (first, key))) {
            for [queries, keys] in BLOCKS {
                let (p, k) = (first..first + queries, key..key + keys);
                let Some(bias) = scores.of_block(p.clone(), k.clone()) else { continue };
                let is_near = first < NEAR && key < NEAR;
                let [rows, columns] = if is_near { [1; 2] } else { [queries - 1, keys - 1] };
                for (p, k) in p
                    .step_by(rows as usize)
                    .flat_map(|p| k.clone().step_by(columns as usize).map(move |k| (p, k)))
                {
                    equals(case, of, scores, bias, [p, k])?;
                }
            }
        }
        Ok(())
    })
}

/// Compares a block's bias with one score.
fn equals(
    case: &Case,
    of: &Sequence,
    scores: impl Scores,
    BlockBias { scale, add }: BlockBias,
    [p, k]: [i32; 2],
) -> Result<(), Failure> {
    const PRODUCT: f32 = 1.25;
    let (score, block) = (scores.change_one(PRODUCT, p, k), PRODUCT * scale + add);
    let is_near = (score - block).abs() <= 1e-4 * (1.0 + score.abs());
    if is_near || score == block || score.is_nan() && block.is_nan() {
        return Ok(());
    }
    Err(Failure::BlockBias { at: At::new(case, of, [p, k]), score, block })
}
