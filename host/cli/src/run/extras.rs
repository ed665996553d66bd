//! Tensors of a file beside queries, keys and values: slopes, sinks, a bias, and masks.
use crate::error::Error;
use crate::files::{File, read_slopes};
use crate::options::ScoreOptions;
use ferroflash::DType;
use ferroflash::plan::Problem;
use ferroflash::request::MAX_SCALE;
use reference::{BiasTensor, BitsTensor, Extras};
use safetensors::Dtype;

/// The names of these tensors, without slopes. Every file may have them.
pub(super) const NAMES: [&str; 4] = ["sinks", "bias", "mask_bits", "prefix_lengths"];
/// The names of the scales of q, k and v of e4m3.
pub(super) const DESCALES: [&str; 3] = ["q_descale", "k_descale", "v_descale"];
/// Types of a bias.
const BIASES: &[DType] = &[DType::F16, DType::Bf16, DType::F32];

/// Returns the extras of a file for a problem. `keys` is the number of keys of the longest sequence.
pub(super) fn read(
    file: &File<'_>,
    problem: &Problem,
    keys: usize,
    scores: &ScoreOptions,
) -> Result<Extras, Error> {
    if file.has("seqused_q") {
        is_of_all_sequences(file)?;
    }
    let slopes = read_slopes(file, problem)?;
    let masks = NAMES[2..].iter().copied().filter(|name| file.has(name)).chain(scores.mask_option());
    if let [one, other, ..] = masks.collect::<Vec<_>>()[..] {
        return Err(
            file.invalid(format_args!("has `{one}`, and the mask is {other} too; leave one of them out"))
        );
    }
    if let Some(keys) = scores.mask_keys.filter(|_| !file.has("mask_bits")) {
        let what = format_args!("has no `mask_bits`, which --mask-keys {keys} needs");
        return Err(file.invalid(format_args!("{what}; leave --mask-keys out")));
    }
    let prefixes = file.has("prefix_lengths").then(|| prefixes(file, problem)).transpose()?;
    Ok(Extras {
        slopes,
        sinks: sinks(file, problem.heads_q)?,
        bias: file.has("bias").then(|| bias(file, problem)).transpose()?,
        prefixes,
        bits: file.has("mask_bits").then(|| bits(file, problem, keys, scores.mask_keys)).transpose()?,
        descales: descales(file, problem)?,
    })
}

/// Refuses tensors that have numbers of each sequence, beside padded queries.
fn is_of_all_sequences(file: &File<'_>) -> Result<(), Error> {
    for (name, remedy) in [
        ("alibi_slopes", "make it [heads_q], the same for all sequences"),
        ("bias", "make its first size 1, the same for all sequences"),
        ("mask_bits", "make its first size 1, the same for all sequences"),
        ("prefix_lengths", "remove it"),
    ] {
        let Some(tensor) = file.has(name).then(|| file.tensor(name)).transpose()? else { continue };
        let shape = tensor.shape();
        let is_of_each = match (name, shape) {
            ("alibi_slopes", _) => shape.len() == 2,
            ("prefix_lengths", _) => true,
            (_, [sequences, _, _, _]) => *sequences > 1,
            _ => false,
        };
        if is_of_each {
            let what = "numbers of each sequence, which do not go with `seqused_q`";
            return Err(file.invalid(format_args!("`{name}` has shape {shape:?}, {what}; {remedy}")));
        }
    }
    Ok(())
}

/// Reads the scales of q, k and v of e4m3.
fn descales(file: &File<'_>, p: &Problem) -> Result<Option<[Vec<f32>; 3]>, Error> {
    let Some(given) = DESCALES.into_iter().find(|name| file.has(name)) else { return Ok(None) };
    if p.dtype != DType::E4m3 {
        let what = "which only q, k and v of F8_E4M3 have; remove it";
        return Err(file.invalid(format_args!("has `{given}`, {what}")));
    }
    if file.has("seqused_q") {
        let what = "whose scales of each sequence padded queries do not take; remove one of both";
        return Err(file.invalid(format_args!("has `seqused_q` and `{given}`, {what}")));
    }
    let [q, k, v] = DESCALES.map(|name| descale(file, name, [p.batch, p.heads_k]));
    let (q, k, v) = (q?, k?, v?);
    let factors = q.iter().zip(&k).map(|(q, k)| p.softmax_scale() * q * k);
    at_most(file, "--scale x `q_descale` x `k_descale`", factors)?;
    Ok(Some([q, k, v]))
}

/// Reads one f32 per sequence and head, `[batch, heads]`; ones if there is no such tensor.
fn descale(file: &File<'_>, name: &str, of: [usize; 2]) -> Result<Vec<f32>, Error> {
    if !file.has(name) {
        return Ok(vec![1.0; of[0] * of[1]]);
    }
    let (words, shape) = file.words(name, &[Dtype::F32])?;
    if shape[..] != of {
        let what = format_args!("`{name}` has shape {shape:?}; it must be {of:?}: batch and key heads");
        return Err(file.invalid(what));
    }
    let scales: Vec<_> = words.map(f32::from_le_bytes).collect();
    match scales.iter().find(|x| !(x.is_finite() && **x >= 0.0)) {
        Some(wrong) => {
            Err(file.invalid(format_args!("`{name}` has {wrong:e}; it must be a number of 0 or more")))
        }
        None => Ok(scales),
    }
}

/// Checks the factors of scores, which are the product `of`. The library knows those in device memory not.
pub(super) fn at_most(file: &File<'_>, of: &str, factors: impl Iterator<Item = f32>) -> Result<(), Error> {
    let most = factors.fold(0.0, f32::max);
    if most <= MAX_SCALE {
        return Ok(());
    }
    let what = format_args!("{of} is {most:e}, and must be at most 2^20; multiply `q` by a part of it");
    Err(file.invalid(what))
}

/// Reads attention sinks: one logit per query head.
fn sinks(file: &File<'_>, heads: usize) -> Result<Option<Vec<f32>>, Error> {
    let sinks = file.per_head("sinks", heads, false)?;
    // A logit of -inf means that its head has no sink.
    if let Some(wrong) = sinks.iter().flatten().find(|x| x.is_nan() || **x == f32::INFINITY) {
        return Err(
            file.invalid(format_args!("`sinks` has {wrong}; a logit must be a number below infinity"))
        );
    }
    Ok(sinks)
}

fn bias(file: &File<'_>, p: &Problem) -> Result<BiasTensor, Error> {
    let bias = file.elements("bias", BIASES)?;
    let Problem { batch, heads_q, seqlen_q, seqlen_k, .. } = *p;
    match bias.shape[..] {
        [b, h, q, k] if is(b, batch) && is(h, heads_q) && is(q, seqlen_q) && k == seqlen_k => {
            Ok(BiasTensor::new(bias.dtype, [b, h, q, k], &bias.bytes))
        }
        ref other => {
            let wanted = format_args!(
                "[{batch} or 1, {heads_q} or 1, {seqlen_q} or 1, {seqlen_k}]: sequences, query heads, \
                 queries and keys"
            );
            Err(file.invalid(format_args!("`bias` has shape {other:?}; it must be {wanted}")))
        }
    }
}

/// Returns whether a size equals the problem's size, or is 1 (broadcast).
fn is(size: usize, of: usize) -> bool {
    size == of || size == 1
}

/// Reads mask bits: of all keys, of the keys of `--mask-keys`, or of the nodes of a tree.
fn bits(file: &File<'_>, p: &Problem, keys: usize, asked: Option<usize>) -> Result<BitsTensor, Error> {
    let (bytes, shape) = file.bytes("mask_bits")?;
    let Problem { batch, heads_q, seqlen_q, seqlen_k, .. } = *p;
    let (b, h, q, row) = match shape[..] {
        [h, q, row] => (1, h, q, row),
        [b, h, q, row] => (b, h, q, row),
        _ => (0, 0, 0, 0),
    };
    if !(is(b, batch) && is(h, heads_q) && q == seqlen_q && row > 0) {
        let wanted = format_args!(
            "[{heads_q} or 1, {seqlen_q}, bytes], query heads and queries, or [{batch} or 1, {heads_q} or 1, \
             ..] with sequences"
        );
        return Err(file.invalid(format_args!("`mask_bits` has shape {shape:?}; it must be {wanted}")));
    }
    if let Some(asked) = asked.filter(|asked| !(1..=seqlen_k).contains(asked)) {
        let most = format_args!("it must be 1 to {seqlen_k}, the most keys of a sequence");
        return Err(Error::Invalid(format!("--mask-keys {asked}: {most}")));
    }
    if let Some(asked) = asked.filter(|asked| asked.div_ceil(8) != row) {
        let needed = format_args!("--mask-keys {asked} needs {}, a bit for each key", asked.div_ceil(8));
        return Err(file.invalid(format_args!("`mask_bits` has rows of {row} bytes; {needed}")));
    }
    let tree = (seqlen_q.div_ceil(8) == row).then_some(seqlen_q);
    let columns = asked.or((8 * row >= keys).then_some((8 * row).min(seqlen_k))).or(tree);
    match columns {
        Some(columns) if columns.div_ceil(8) == row && (1..=seqlen_k).contains(&columns) => {
            Ok(BitsTensor::new([b, h, q, columns], bytes))
        }
        _ => {
            let what = format_args!("`mask_bits` has rows of {row} bytes (one bit per key)");
            let wanted = format_args!(
                "{} for all {keys} keys, or {} for the last {seqlen_q} (a tree with a node per query)",
                keys.div_ceil(8),
                seqlen_q.div_ceil(8)
            );
            let more = "for the last N keys, give --mask-keys N and rows of N / 8 bytes, rounded up";
            Err(file.invalid(format_args!("{what}; it must be {wanted}; {more}")))
        }
    }
}

fn prefixes(file: &File<'_>, p: &Problem) -> Result<Vec<i32>, Error> {
    let prefixes = file.list("prefix_lengths")?;
    if prefixes.len() == p.batch {
        return Ok(prefixes);
    }
    let (got, batch) = (prefixes.len(), p.batch);
    Err(file
        .invalid(format_args!("`prefix_lengths` has {got} integers; it must have {batch}, one per sequence")))
}
