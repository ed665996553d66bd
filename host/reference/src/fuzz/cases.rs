//! Random problems of attention on varlen tensors and on KV caches.
use super::{Drawn, Limits, below, one_in, pick};
use crate::case::{Case, Pages};
use crate::device_lengths::DeviceLengths;
use crate::inputs::Random;
use crate::masks::fit;
use crate::place::Layout;
use crate::shared::Shared;
use crate::subject::Task;
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Index, Mask, MaskBits, Precision, Prefix, Splits};

pub(super) fn dtype(random: &mut Random) -> DType {
    pick(random, &[DType::F16, DType::Bf16])
}

/// Returns a random multiple of 8. Small and large multiples are equally frequent.
pub(super) fn head_dim(random: &mut Random) -> usize {
    let most = pick(random, &[8, 16, 32]);
    8 * (1 + below(random, most))
}

fn mask(random: &mut Random, limits: Limits) -> Mask {
    let side = |random: &mut Random| (!one_in(random, 4)).then(|| below(random, limits.seqlen) as u32);
    match below(random, 4) {
        0 => Mask::Full,
        1 | 2 => Mask::Causal,
        _ => Mask::Window { left: side(random), right: side(random) },
    }
}

/// Returns random lengths: short and long lengths, and some lengths of 0.
pub(super) fn lengths(random: &mut Random, count: usize, most: usize) -> Vec<usize> {
    let length = |random: &mut Random| match below(random, 4) {
        0 => pick(random, &[0, 1, 15, 16, 17, 63, 64, 65, 127, 128]).min(most),
        1 => below(random, 10),
        _ => below(random, most + 1),
    };
    (0..count).map(|_| length(random)).collect()
}

/// Returns the largest number of queries per sequence that `limits` permit on these keys.
pub(super) fn most_queries(limits: Limits, keys: &[usize], elements: usize) -> usize {
    (limits.products / elements / (1 + keys.iter().sum::<usize>())).clamp(1, limits.seqlen)
}

/// Returns the integers of one plan's launches. Overlapping sequences occur only if `limits` permit them,
/// because the simulator reports them as races.
pub(super) fn device_lengths(random: &mut Random, limits: Limits, varlen: bool) -> Vec<DeviceLengths> {
    let mut device_lengths = vec![
        DeviceLengths::Filled,
        DeviceLengths::Fewer(random.bits()),
        DeviceLengths::Garbage(random.bits()),
    ];
    if varlen && limits.overlaps {
        device_lengths.push(DeviceLengths::Lost(random.bits()));
    }
    device_lengths.push(DeviceLengths::Filled);
    device_lengths
}

pub(super) fn varlen(random: &mut Random, limits: Limits) -> Drawn {
    let group = 1 + below(random, limits.heads);
    let heads_k = 1 + below(random, limits.heads / group);
    let count = 1 + below(random, limits.sequences);
    let (keys, head_dim) = (lengths(random, count, limits.seqlen), head_dim(random));
    let queries = lengths(random, count, most_queries(limits, &keys, heads_k * group * head_dim));
    let spare = if one_in(random, 2) { 0 } else { below(random, 20) };
    let case =
        Case::new([]).varlen(queries.iter().zip(&keys).map(|(queries, keys)| [*queries, *keys, spare]));
    // There is at least one row per sequence, and there are some unused rows.
    let mut unused = [(); 2].map(|()| 1 + below(random, 9));
    // If there is one row per sequence and each sequence has one query, kernels need not read `cu_seqlens_q`.
    // Row `b` of Q must then be the query of sequence `b`, so the offsets must be valid.
    unused[0] += usize::from(queries.iter().sum::<usize>() + unused[0] == count);
    let case = Case {
        dtype: dtype(random),
        spare: unused,
        heads: [heads_k * group, heads_k],
        head_dim,
        mask: mask(random, limits),
        alignment: pick(random, &[Alignment::BottomRight, Alignment::TopLeft]),
        softcap: one_in(random, 6).then(|| 1.0 + below(random, 50) as f32),
        alibi: one_in(random, 6),
        pages: Pages::Tensors(pick(random, &[Layout::Bshd, Layout::Bhsd])),
        seed: random.bits(),
        device_lengths: device_lengths(random, limits, true),
        ..case
    };
    let text = format!("{} {}, {:?}", case.problem(), case.pages, case.sequences().unwrap_or_default());
    (Task::Attention(case), text)
}

/// Draws a problem with products of eight bits, on varlen tensors or on a KV cache of eight bits.
pub(super) fn eight_bits(random: &mut Random, limits: Limits) -> Drawn {
    let of_e4m3 = limits.of_e4m3.filter(|_| one_in(random, 2));
    let (precision, is_hoppers) = (of_e4m3.unwrap_or(Precision::Int8F16), of_e4m3 == Some(Precision::Fp8));
    let is_cached = of_e4m3.is_some() && one_in(random, 2);
    let wide = is_hoppers || of_e4m3.is_some() && !is_cached;
    let narrow = pick(random, &[16, 48, 64, 80, 96, 128]);
    let head_dim = if wide && one_in(random, 3) { pick(random, &[144, 192, 256]) } else { narrow };
    // The draws count products of fewer columns than the case then has.
    let limits = Limits { products: limits.products / 8, ..limits };
    let (task, _) = if is_cached { on_cache(random, limits, true) } else { varlen(random, limits) };
    let Task::Attention(mut case) = task else { return (task, String::new()) };
    (case.precision, case.head_dim) = (precision, head_dim);
    case.alibi &= !is_hoppers;
    if is_cached {
        // The planner refuses this precision for up to 64 rows.
        let least = 65_usize.div_ceil(case.heads[0] / case.heads[1]);
        case.kv_dtype = Some(if is_hoppers { DType::E4m3 } else { DType::Int8 });
        if let Pages::Nhd(page) | Pages::Hnd(page) | Pages::Interleaved(page) = &mut case.pages {
            // TMA copies eight keys and more.
            *page = if is_hoppers { page.next_multiple_of(8) } else { *page };
        }
        case.queries = case.queries.max(least);
        if let Some(first) = case.varlen_queries.as_mut().and_then(|queries| queries.first_mut()) {
            *first = (*first).max(least);
        }
        case.splits = Splits::Auto;
    }
    let text = format!("{case}, keys {:?}, queries {:?}", case.filled, case.varlen_queries);
    (Task::Attention(case), text)
}

pub(super) fn on_cache(random: &mut Random, limits: Limits, many: bool) -> Drawn {
    let (own, batch) = (dtype(random), 1 + below(random, limits.sequences));
    let mut filled = lengths(random, batch, if many { limits.seqlen } else { 2 * limits.seqlen });
    if one_in(random, 20) {
        filled.fill(0);
    }
    let max_k = filled.iter().max().copied().unwrap_or(0).max(1) + below(random, 40);
    let (heads_k, head_dim) = (1 + below(random, 3), head_dim(random));
    let group = 1 + below(random, 8);
    // Every decode kernel accepts at least eight rows.
    let most = most_queries(limits, &filled, heads_k * group * head_dim);
    let queries = if many { 1 + below(random, most) } else { 1 + below(random, 8 / group) };
    let eight = !many && one_in(random, 3);
    let cache = if eight { pick(random, &[DType::E4m3, DType::Int8]) } else { own };
    let pages = match below(random, 5) {
        0 => Pages::Dense,
        1 => Pages::Rows,
        2 => Pages::Nhd(pick(random, &[1, 5, 16, 32, 64, 100])),
        3 => Pages::Hnd(pick(random, &[1, 3, 7, 16, 48])),
        _ => Pages::Interleaved(pick(random, &[2, 16, 64])),
    };
    let chunk = Splits::Keys(128 * (1 + below(random, 3) as u32));
    let exactly = Splits::Exactly(1 + below(random, 9) as u32);
    let splits = if many { [Splits::Auto, chunk] } else { [pick(random, &[Splits::Auto, exactly]), chunk] };
    let mut case = Case {
        dtype: own,
        kv_dtype: Some(cache),
        max_k,
        queries,
        heads: [heads_k * group, heads_k],
        head_dim: if eight { head_dim.next_multiple_of(16) } else { head_dim },
        pages,
        mask: mask(random, limits),
        softcap: one_in(random, 6).then(|| 1.0 + below(random, 50) as f32),
        alibi: many && head_dim <= 256 && one_in(random, 6),
        sinks: !many && one_in(random, 3),
        splits: pick(random, &splits),
        counters: one_in(random, 2),
        ..Case::new(filled)
    }
    .seeded(random.bits());
    if many && one_in(random, 2) {
        case = case.varlen_queries(lengths(random, batch, most));
    }
    case.device_lengths = device_lengths(random, limits, case.varlen_queries.is_some());
    let text = format!("{case}, keys {:?}, queries {:?}", case.filled, case.varlen_queries);
    (Task::Attention(case), text)
}

/// Draws a problem on a KV cache. One in four has a mask of bits, as trees of drafts have, which takes no
/// slopes. Of these, prefill reads caches of eight bits, too.
pub(super) fn with_trees(random: &mut Random, limits: Limits, many: bool) -> Drawn {
    let (task, text) = on_cache(random, limits, many);
    let case = match task {
        Task::Attention(case) if one_in(random, 4) => case,
        task => return (task, text),
    };
    let (keys, head_dim) = (1 + below(random, limits.seqlen), case.head_dim.next_multiple_of(16));
    let (mask, eight) = (bits(random, keys), pick(random, &[DType::E4m3, DType::Int8]));
    let case = Case { mask: fit(case.problem().mask(mask)).mask, alibi: false, ..case };
    let case = match many && one_in(random, 2) {
        true => Case { kv_dtype: Some(eight), head_dim, ..case },
        false => case,
    };
    let text = format!("{case}, keys {:?}, queries {:?}", case.filled, case.varlen_queries);
    (Task::Attention(case), text)
}

/// Returns a mask of bits for the last `keys` keys, of all sequences and heads or of each.
fn bits(random: &mut Random, keys: usize) -> Mask {
    let shape = [pick(random, &[1, usize::MAX]), pick(random, &[1, usize::MAX]), 0, keys];
    Mask::Bits(MaskBits::contiguous(0, 0, shape))
}

/// Gives a case what kernels have parameters for: a prefix, chunks, bits, or a bias.
fn with_parameters(random: &mut Random, limits: Limits, case: Case) -> Case {
    let keys = 1 + below(random, limits.seqlen);
    let bits = bits(random, keys);
    let mask = match below(random, 6) {
        0 => Mask::Prefix(Prefix::All(keys as u32)),
        1 => Mask::Prefix(Prefix::Each(Index::new(0, 0))),
        2 => Mask::Chunked { chunk: keys as u32 },
        3 if case.problem().seqlen_k > 0 => bits,
        4 => return Case { mask: Mask::Full, bias: Some(pick(random, &[case.dtype, DType::F32])), ..case },
        _ => return Case { mask: Mask::Causal, bias: Some(case.dtype), ..case },
    };
    Case { mask: fit(case.problem().mask(mask)).mask, ..case }
}

/// Draws a backward problem: of softcap, slopes, and masks and biases with parameters, it has at most one.
pub(super) fn backward(random: &mut Random, limits: Limits) -> Drawn {
    let (group, batch) = (1 + below(random, limits.heads), 1 + below(random, 2));
    let heads_k = 1 + below(random, limits.heads / group);
    let (head_dim, keys) = (head_dim(random), 1 + below(random, limits.seqlen));
    // The reference computes seven products, twice.
    let most = most_queries(limits, &vec![keys; batch], 8 * heads_k * group * head_dim);
    let p = Problem::new(dtype(random), batch, 1 + below(random, most), heads_k * group, head_dim);
    let layout = pick(random, &[Layout::Bshd, Layout::Bhsd, Layout::Packed]);
    let case = Case {
        mask: mask(random, limits),
        alignment: pick(random, &[Alignment::BottomRight, Alignment::TopLeft]),
        ..Case::tensors(p.seqlen_k(keys).heads_k(heads_k), layout, random.bits())
    };
    let case = if one_in(random, 3) { in_sequences(random, limits, case) } else { case };
    let forward = match below(random, 4) {
        0 => Case { softcap: Some(1.0 + below(random, 50) as f32), ..case },
        1 => Case { alibi: true, ..case },
        2 if head_dim <= 128 => with_parameters(random, limits, case),
        _ => case,
    };
    let has_scores = forward.softcap.is_some() || forward.alibi || forward.bias.is_some();
    let is_plain = matches!(forward.mask, Mask::Full | Mask::Causal) && !has_scores;
    // Kernels of other masks and scores take equal widths.
    let is_apart = is_plain && head_dim <= 192 && one_in(random, 2);
    let head_dim_v = is_apart.then(|| 8 + 8 * below(random, 16)).filter(|columns| *columns != head_dim);
    let d_lse = one_in(random, 2);
    let case = Case { head_dim_v, sinks: one_in(random, 3), ..forward }.backward(d_lse);
    let text = case.to_string();
    (Task::Attention(case), text)
}

/// Returns a backward problem on varlen tensors, with the heads and the mask of `case`.
fn in_sequences(random: &mut Random, limits: Limits, case: Case) -> Case {
    let count = 1 + below(random, limits.sequences);
    let keys = lengths(random, count, limits.seqlen);
    let queries = lengths(random, count, most_queries(limits, &keys, 8 * case.heads[0] * case.head_dim));
    let unused = if one_in(random, 2) { 0 } else { below(random, 20) };
    let sequences = queries.into_iter().zip(keys).map(|(queries, keys)| [queries, keys, unused]);
    let pages = Pages::Tensors(pick(random, &[Layout::Bshd, Layout::Bhsd]));
    Case { pages, spare: [1 + below(random, 9), 1 + below(random, 9)], ..case.varlen(sequences) }
}

/// Draws a decode problem of up to four queries, or of up to 16 rows for a simulator.
pub(super) fn latent(random: &mut Random, limits: Limits) -> Drawn {
    let (own, batch) = (dtype(random), 1 + below(random, limits.sequences));
    let filled = lengths(random, batch, limits.seqlen);
    let max_k = filled.iter().max().copied().unwrap_or(0).max(1) + below(random, 40);
    // Half of the problems have DeepSeek's numbers of columns. The other half have random numbers of columns.
    let columns = if one_in(random, 2) { 512 } else { 8 * (1 + below(random, 64)) };
    let head_dim = if columns == 512 { 576 } else { columns + 8 * (1 + below(random, 8)) };
    let [heads_k, queries] = [1 + below(random, 2), 1 + below(random, 4)];
    let most = most_queries(limits, &filled, heads_k * queries * head_dim);
    let group = 1 + below(random, most.min(if limits.overlaps { 128 } else { 16 / queries }));
    let splits = [
        Splits::Auto,
        Splits::Exactly(1 + below(random, 5) as u32),
        Splits::Keys(128 * (1 + below(random, 2) as u32)),
    ];
    let case = Case {
        dtype: own,
        max_k,
        queries,
        heads: [heads_k * group, heads_k],
        head_dim,
        head_dim_v: Some(columns),
        latent: true,
        pages: pick(random, &[Pages::Dense, Pages::Rows, Pages::Nhd(1), Pages::Nhd(7), Pages::Nhd(64)]),
        mask: pick(random, &[Mask::Full, Mask::Causal, Mask::Window { left: None, right: Some(2) }]),
        scale: Some(0.02 + below(random, 32) as f32 / 128.0),
        sinks: one_in(random, 3),
        splits: pick(random, &splits),
        counters: one_in(random, 2),
        device_lengths: device_lengths(random, limits, false),
        ..Case::new(filled)
    }
    .seeded(random.bits());
    let text = format!("{case}, keys {:?}", case.filled);
    (Task::Attention(case), text)
}

/// Draws groups that the host or the device knows. The launch makes two passes.
pub(super) fn prefix(random: &mut Random, limits: Limits) -> Drawn {
    let (own, eight, varlen) = (dtype(random), one_in(random, 3), one_in(random, 2));
    let page = pick(random, &[1, 5, 16, 24]);
    let group = |random: &mut Random| [1 + below(random, 6), below(random, 5) + usize::from(!varlen)];
    let first = group(random);
    let groups = (0..1 + below(random, 3)).map(|_| if varlen { group(random) } else { first });
    let groups: Vec<_> = groups.collect();
    let (queries, heads_k) = (1 + below(random, 4), 1 + below(random, 2));
    let heads = heads_k * (1 + below(random, 8));
    // Under a causal mask, a sequence has at least the keys of all but one of its queries behind its prefix.
    let rest = |random: &mut Random| queries - 1 + below(random, 1 + limits.seqlen / 4);
    let filled: Vec<_> = groups
        .iter()
        .flat_map(|[count, pages]| (0..*count).map(|_| pages * page + rest(random)).collect::<Vec<_>>())
        .collect();
    let head_dim = pick(random, &[16, 48, 64, 80, 128]);
    let case = Case {
        dtype: own,
        kv_dtype: eight.then_some(DType::E4m3),
        max_k: filled.iter().max().copied().unwrap_or(1) + page,
        queries,
        heads: [heads, heads_k],
        head_dim,
        pages: pick(random, &[Pages::Nhd(page), Pages::Hnd(page), Pages::Interleaved(page)]),
        mask: pick(random, &[Mask::Full, Mask::Causal]),
        softcap: one_in(random, 6).then(|| 1.0 + below(random, 50) as f32),
        sinks: one_in(random, 3),
        counters: one_in(random, 2),
        shared: Some(Shared { groups, varlen, always: true }),
        device_lengths: device_lengths(random, limits, false),
        ..Case::new(filled)
    }
    .seeded(random.bits());
    let text = format!("{case}, keys {:?}, {:?}", case.filled, case.shared);
    (Task::Attention(case), text)
}
