//! The rules of selection: one ordered table. Each rule names a kernel, the conditions on problem and device
//! for which the kernel is selected, and the reason. The first rule that holds decides.
use super::rule::{BIG, CAUSAL, Case, FULL, Fills, LOCAL, MEDIUM, Of, PLAIN, Rule, SMALL, tile};
use super::{Choice, pays, rule};
use crate::MaskKind;
use crate::schedule::{at_once, row_blocks};
use spec::{Class, Precision};

const DECODE: Of = Of::Few(Class::Decode);
const LATENT: Of = Of::Few(Class::Latent);
const LISTED: Of = Of::Few(Class::Listed);
const HOPPER: Of = Of::HopperSpecial;
const PAGED: Of = Of::Portable(Class::Paged);
const VARLEN: Of = Of::Portable(Class::Varlen);

/// Some reasons contain times. The times of large cards are measurements on an H200
/// (docs/performance-log.md). The times of small cards are predictions of a model of the L4
/// (docs/l4-model.md), which was compared with measurements on the H200.
///
/// Larger tiles come first: they read keys and values less often. A larger tile is skipped only if it would
/// leave SMs idle. If no rule for one of Hopper's dense kernels holds, a portable kernel runs: with few
/// tiles, SMs would idle (8 heads of 512 are such a problem).
#[rustfmt::skip]
const RULES: &[Rule] = &[
    Rule::hopper(64, 192, "warpgroups and TMA; three warpgroups of queries read keys and values \
        less often than two (H200: 1.2x cuDNN)").masks(FULL),
    Rule::hopper(64, 192, "warpgroups and TMA; long and causal: three warpgroups of queries (H200: \
        1.2x cuDNN at 8192)").masks(CAUSAL).keys(4096),
    Rule::hopper(64, 128, "warpgroups and TMA (H200: 1.1x cuDNN)"),
    Rule::hopper(80, 192, THREE_OF_80).masks(FULL).when(|case, _| pays::wastes_little(case)),
    Rule::hopper(96, 192, THREE).masks(FULL).when(|case, _| pays::wastes_little(case)),
    Rule::hopper(96, 192, THREE).masks(CAUSAL).keys(2048).per_100_sms(400)
        .when(|case, _| pays::wastes_little(case) && !case.q.problem.head_dim.is_multiple_of(16)),
    Rule::hopper(96, 128, "warpgroups and TMA (H200: 1.3 to 1.6x cuDNN)"),
    Rule::hopper(128, 128, "warpgroups and TMA (H200: 1.2 to 1.4x cuDNN)"),
    Rule::hopper(192, 128, "warpgroups and TMA"),
    Rule::hopper(192, 128, "warpgroups and TMA; values of 128 columns").with_values(128).masks(PLAIN),
    Rule::hopper(256, 128, "warpgroups and TMA"),
    Rule::hopper(512, 128, "warpgroups and TMA; a work tile has half of the columns of V and O, so that \
        128 queries read each key"),
    Rule::short(64, 66, 120),
    Rule::short(64, 512, 95),
    Rule::short(64, 128, 70).masks(LOCAL),
    Rule::short(96, 128, 95),
    Rule::short(128, 66, 70),
    Rule::short(128, 256, 70).masks(LOCAL),
    Rule::short(192, 128, 190),
    Rule::short(192, 256, 95),
    Rule::short(192, 128, 190).with_values(128),
    Rule::short(192, 256, 95).with_values(128),
    Rule::short(256, 128, 190),
    Rule::short(256, 256, 95),
    // Few queries on many keys: splits distribute the work over the SMs more evenly than whole tiles do.
    Rule::hopper(64, 128, HOPPER_SPLITS).masks(PLAIN).keys(2048).fills(Fills::Splits),
    Rule::hopper(128, 128, HOPPER_SPLITS).masks(PLAIN).keys(2048).fills(Fills::Splits),
    // Few queries, if splits do not pay or the workspace is too small.
    Rule::hopper(64, 128, "warpgroups and TMA; few queries on many keys, with enough tiles to keep most \
        SMs busy").keys(2048).per_100_sms(75),
    Rule::short(96, 128, 45),
    Rule::short(128, 512, 45),
    Rule::short(192, 512, 45),
    Rule::short(256, 512, 45),
    Rule::new(HOPPER, "warpgroups and TMA, which also keep the largest score of each row")
        .when(|case, e| e.scores.maxima && pays::reaches(case, e, pays::LEAST_OF_MAXIMA)),
    // Minimum keys are equal to the minima of the kernels without parameters.
    Rule::new(HOPPER, "warpgroups and TMA, with this mask and these scores; long: three warpgroups of \
        queries read keys and values less often than two")
        .when(|case, e| e.tile_m == 192 && pays::is_long(case, e)),
    Rule::new(HOPPER, "warpgroups and TMA; the producer copies the bias beside keys; long sequences that \
        fill the device").when(|case, e| e.scores.bias.is_some() && pays::is_long(case, e)),
    Rule::new(HOPPER, "warpgroups and TMA, with slopes under a causal mask; long sequences that fill the \
        device").when(|case, e| e.scores.alibi && pays::is_long(case, e)),
    Rule::new(HOPPER, "warpgroups and TMA, with sinks; long sequences that fill the device")
        .when(|case, e| e.scores.sink && pays::is_long(case, e)),
    Rule::new(HOPPER, "warpgroups and TMA, with chunks; long sequences that fill the device")
        .when(|case, e| e.mask == MaskKind::Chunked && pays::is_long(case, e)),
    Rule::new(HOPPER, "warpgroups and TMA, with a prefix; long sequences that fill the device")
        .when(|case, e| e.mask == MaskKind::Prefix && pays::is_long(case, e)),
    Rule::new(HOPPER, "warpgroups and TMA, with this mask and these scores; long sequences that fill the \
        device").when(pays::is_long),
    Rule::new(Of::Hopper(Class::Varlen), "warpgroups and TMA; sequences of a tile or more, or few queries on \
        many keys, fill the device").when(|case, e| pays::reaches(case, e, pays::least_varlen(e))),
    Rule::new(Of::Hopper(Class::Paged), "the request asks for precision fp8: products of e4m3 on an e4m3 KV \
        cache; the sum of all errors is at most 11 % of the sum of all magnitudes, but for small weights")
        .when(|case, _| case.q.problem.precision == Precision::Fp8),
    Rule::new(Of::Hopper(Class::Paged), "warpgroups and TMA on pages; sequences are long enough and fill the \
        device").when(|case, e| pays::reaches(case, e, pays::least_paged(e))),

    Rule::new(Of::Portable(Class::Dense), GENERAL).when(pays::is_general),
    Rule::dense(64, [128, 32], "long: the next scores are computed during this block's exponentials")
        .keys(2048).fills(Fills::Device),
    Rule::dense(64, [64, 64], "short and causal: 64 queries end sooner than 128, two stages are in flight \
        (H200, 32x32 heads of 512: 149 us against 158)").masks(CAUSAL).stages(3).smem(BIG)
        .fills(Fills::Device),
    Rule::dense(64, [128, 64], "too short for the overlapped schedule's prologue: key blocks of 64 in \
        sequence").fills(Fills::Device),
    Rule::dense(64, [128, 64], SPLITS).keys(2048).fills(Fills::Splits),
    Rule::dense(64, [128, 64], "one block of 128 queries per SM keeps its tensor cores busy (model of the \
        L4, 2x8 heads of 512: 21 to 23 us against 24 to 26 for 64)").masks(FULL).smem(SMALL).per_100_sms(95),
    Rule::dense(64, [64, 64], "two blocks of 64 queries per SM (model of the L4, 2x8 heads of 512: 15.5 us \
        against 17 with warps that split keys)").masks(CAUSAL).smem(SMALL).per_100_sms(190),
    Rule::dense(64, [64, 128], "64 queries per block, 32 per warp, two warps split their keys (model of \
        the L4, 8 heads of 512: 9.4 us against 12.5 to 13.9 without)")
        .masks(CAUSAL).smem(SMALL).per_100_sms(95),
    Rule::dense(64, [64, 128], "64 queries per block, 32 per warp, two warps split their keys (H200, 4x8 \
        heads of 512, causal: 8.9 us against 9.3 for 32, in two runs)").smem(BIG).per_100_sms(150),
    Rule::dense(64, [64, 64], "one block of 64 queries per SM (H200, 2x8 heads of 512: 6.2 us against 6.4 \
        for 32)").masks(FULL).per_100_sms(95),
    Rule::dense(64, [32, 256], "few queries, many keys: four warps split the keys of 32 queries")
        .keys(2048),
    Rule::dense(64, [32, 128], "few queries for this GPU: 32 per block, two warps split their keys, all \
        loads in flight (H200, 8 heads of 512: 4.7 us against 4.85)")
        .masks(FULL).stages(4).smem(BIG).fills(Fills::OneWave),
    Rule::dense(64, [32, 128], "few queries for this GPU: 32 per block, and two warps split their keys \
        (H200, 8 heads of 512: 4.9 us against 5.9 for 64)"),
    Rule::dense(128, [128, 48], "two blocks with 64 keys per stage do not fit an SM, two with 48 do")
        .smem(MEDIUM).fills(Fills::Device),
    Rule::dense(128, [128, 64],
        "the most keys per stage that fit (H200: 1.2x and 1.3x FlashAttention-2, full and causal)")
        .fills(Fills::Device),
    Rule::dense(128, [128, 64], SPLITS).keys(2048).fills(Fills::Splits),
    Rule::dense(128, [64, 64], "64 queries per block, 32 per warp, two warps split their keys")
        .per_100_sms(150),
    Rule::dense(128, [32, 128], "few queries, many keys: four warps split the keys of 32 queries")
        .keys(2048),
    Rule::dense(128, [32, 64], "few queries for this GPU: 32 per block, and two warps split their keys"),
    Rule::dense(192, [128, 64], "128 queries per block read keys and values half as often as 64")
        .fills(Fills::Device),
    Rule::dense(192, [64, 32], "128 queries per block do not fit, or would leave SMs idle: 64"),
    Rule::dense(192, [128, 48], "values of 128 columns leave registers for 32 rows per warp, which halves \
        the reads of shared memory (model of the H200: 475 TFLOP/s, 361 with V padded to 192)")
        .with_values(128).fills(Fills::Device),
    Rule::dense(192, [64, 48], "128 queries per block do not fit, or would leave SMs idle: 64")
        .with_values(128),
    Rule::dense(256, [128, 32], "128 queries per block read keys and values half as often as 64")
        .fills(Fills::Device),
    Rule::dense(256, [64, 32], "128 queries per block do not fit, or would leave SMs idle: 64"),
    Rule::new(Of::Portable(Class::Dense), "the first kernel of this dtype, head dim and mask that fits the \
        device").when(|case, e| !case.q.is_special(e)),

    Rule::new(Of::Portable(Class::Quantised), "the request asks for precision int8-f16: scores of int8; the \
        sum of all errors is at most 3 % of the sum of all magnitudes. On this GPU, precision inputs is \
        faster: it has warpgroups")
        .when(|case, e| e.precision() == Precision::Int8F16 && case.q.on.arch() == 90),
    Rule::new(Of::Portable(Class::Quantised), "the request asks for precision int8-f16: scores of int8; the \
        sum of all errors is at most 3 % of the sum of all magnitudes")
        .when(|_, e| e.precision() == Precision::Int8F16),
    Rule::new(Of::Portable(Class::Quantised), "the request asks for precision int8-fp8: scores of int8, \
        values and probabilities of e4m3; the sum of all errors is at most 5 % of the sum of all magnitudes"),
    Rule::new(Of::Hopper(Class::Quantised), "tensors of e4m3: products of e4m3, precision fp8; the sum of \
        all errors is at most 11 % of the sum of all magnitudes, but for small weights")
        .when(|case, _| case.q.problem.is_eight_bit()),
    Rule::new(Of::Hopper(Class::Quantised), "the request asks for precision fp8: products of e4m3; the sum \
        of all errors is at most 11 % of the sum of all magnitudes, but for small weights"),

    Rule::new(VARLEN, GENERAL).when(|case, e| pays::is_only(case) && pays::is_general(case, e)),
    Rule::new(VARLEN, "the only varlen kernel of this dtype, head dim and mask that fits the device")
        .when(|case, _| pays::is_only(case)),
    Rule::new(VARLEN, "sequences of several tiles that fill the device: larger tiles read keys and values \
        less often").when(pays::are_long),
    Rule::new(VARLEN, "short sequences, or few rows for this device: smaller tiles leave fewer SMs idle")
        .when(pays::is_smallest),

    Rule::new(PAGED, "the request asks for precision int8-fp8: scores of int8, of keys as the KV cache has \
        them, values and probabilities of e4m3; the sum of all errors is at most 5 % of the sum of all \
        magnitudes").when(|case, _| case.q.problem.precision == Precision::Int8Fp8),
    Rule::new(PAGED, "ALiBi slopes, which decode kernels lack: work tiles per query head")
        .when(|case, _| case.q.problem.alibi),
    Rule::new(PAGED, "keys and values of different numbers of columns or different strides, which decode \
        kernels lack: work tiles per query head")
        .when(|case, _| case.q.kind.few),
    Rule::new(PAGED, "more than 64 rows per key head: work tiles per query head"),

    // Each combination of mask and scores has few kernels, so one rule serves all combinations.
    Rule::new(Of::Special, LISTS)
        .when(|case, _| pays::is_only(case) && case.q.kind.tile.is_some()),
    Rule::new(Of::Special, ONLY)
        .when(|case, _| pays::is_only(case)),
    Rule::new(Of::Special, "the largest tile with this mask and these scores: there are enough queries to \
        fill the device").when(pays::is_largest),
    Rule::new(Of::Special, FEW)
        .when(pays::is_smallest),

    Rule::new(DECODE, "many short sequences or windows: an SM holds twice the warps, because each warp \
        mostly waits").when(|_, e| e.is_for_short_work()),
    Rule::new(DECODE, "more blocks than SMs: an SM holds several, and one loads while another finds its keys")
        .when(|case, e| at_once(e, case.q.problem, case.q.on) > 1),
    Rule::new(DECODE, "few sequences: smaller blocks split the rows, on SMs that would idle")
        .when(|case, e| row_blocks(e, case.q.problem) > 1 && pays::fit_one_block(case, e)),
    Rule::new(DECODE, "more rows than a block holds: several blocks read the same keys")
        .when(|case, e| row_blocks(e, case.q.problem) > 1),
    Rule::new(DECODE, "few rows: the smallest block that holds all rows of a key head"),

    Rule::new(LATENT, "a latent cache, read once for keys and values: warpgroups and TMA for blocks of 64 \
        rows, whose products take longer than their bytes with mma.sync").when(|_, e| e.has_maps()),
    Rule::new(LATENT, "a latent cache of eight bits: warpgroups for blocks of 64 rows, which convert each \
        key once for all of these rows (H200: slower than a cache of 16 bits)").when(|_, e| e.is_hoppers()),
    Rule::new(LATENT, "a latent cache, read once for keys and values: splits are short, and eight warps take \
        less time for them than four").when(|case, e| pays::of_short_splits(case.q, case.all) == Some(e)),
    Rule::new(LATENT, "a latent cache, read once for keys and values: the smallest block that holds all rows \
        of a latent head").when(|case, e| row_blocks(e, case.q.problem) == 1),
    Rule::new(LATENT, "a latent cache, read once for keys and values: more rows than a block of this device \
        holds, so that several blocks read the same keys"),
    Rule::new(LISTED, "a list of keys of eight bits for each query: warpgroups for blocks of 64 rows, which \
        convert each key once for all of these rows (H200: slower than a cache of 16 bits)")
        .when(|_, e| e.is_hoppers() && e.kv_dtype != e.dtype),
    Rule::new(LISTED, "a list of keys for each query: warpgroups, which gather the keys, for blocks of 64 \
        rows (H200, prefill: 2.2 times as fast as a portable kernel)")
        .when(|_, e| e.is_hoppers()),
    Rule::new(LISTED, "a list of keys for each query: the smallest block that holds all rows of a latent \
        head").when(|case, e| row_blocks(e, case.q.problem) == 1),
    Rule::new(LISTED, "a list of keys for each query: more rows than a block of this device holds, so that \
        several blocks read the same keys"),
];

const LISTS: &str = "the variant's kernel with the tile of the block mask's lists";
const ONLY: &str = "the only kernel with this mask and these scores that fits the device";
const FEW: &str = "few queries for this device: the smallest tile with this mask and these scores";
/// The reason if a kernel's mask is more general than the problem's.
const GENERAL: &str = "k and v of these different numbers of columns: the kernel for every mask, window and \
                       softcap takes them";
const SPLITS: &str = "split-KV for few queries on many keys: several thread blocks per 128 queries, \
                      each with a split of the keys";
const HOPPER_SPLITS: &str = "warpgroups and TMA; split-KV for few queries on many keys: several thread \
                             blocks per 128 queries, each with a split of the keys";
/// The L2 cache limits kernels of head dims 72 to 96: three warpgroups of queries read keys and values less
/// often than two (docs/selection.md).
const THREE: &str = "warpgroups and TMA; three warpgroups of queries read keys and values less often than \
                     two (H100: 1.05 to 1.34x two warpgroups)";

/// Causal masks gain less than 2 % (docs/log/hopper.md).
const THREE_OF_80: &str = "warpgroups and TMA; three warpgroups of queries, whose products have 80 columns \
                           (H200: 1.04 to 1.10x products of 96)";

/// Returns the kernel of the first rule that holds.
pub(super) fn choose(case: &Case<'_>) -> Option<Choice> {
    rule::choose(RULES, case)
}

/// Returns the smallest candidate, by the rules for kernels with parameters.
pub(super) fn smallest(case: &Case<'_>) -> Option<Choice> {
    let kernel = case.kernels.iter().copied().min_by_key(|e| tile(e))?;
    let reason = match case.kernels.len() {
        1 if case.q.kind.tile.is_some() => LISTS,
        1 => ONLY,
        _ => FEW,
    };
    Some(Choice::new(kernel, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttnInfo, DType};
    use spec::ScoreKinds;

    #[test]
    fn every_rule_for_columns_names_one_kernel_per_mask_and_dtype() {
        for rule in RULES.iter().filter(|rule| rule.columns != [0; 2]) {
            let masks = if rule.masks.is_empty() { &[PLAIN, LOCAL].concat() } else { rule.masks };
            for (mask, dtype) in masks.iter().flat_map(|mask| [(*mask, DType::F16), (*mask, DType::Bf16)]) {
                let is_named = |e: &&AttnInfo| {
                    e.has_maps() == (rule.of == Of::Hopper(Class::Dense))
                        && (e.mask, e.scores) == (mask, ScoreKinds::NONE)
                        && rule.names(e)
                };
                let named = spec::of_class(Class::Dense, dtype).filter(is_named);
                assert_eq!(named.count(), 1, "{dtype:?} {mask:?} {:?}", rule.columns);
            }
        }
    }
}
