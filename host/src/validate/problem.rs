//! Checks problems, which do not depend on tensors. Also finds the first difference of two problems.
use super::dtypes::dtypes;
use super::invariance::invariance;
use super::keys::keys;
use super::latent;
use super::variant::variant;
use crate::request::{MAX_HEAD_DIM, MAX_LATENT_DIMS, MAX_SCALE, MAX_SEQLEN, Mask};
use crate::{CacheShape, Error, Problem};
use spec::ScoreKinds;

/// Permitted range of score factors (times log2 e) with ALiBi, a bias or a variant's scores: kernels divide
/// slopes, biases and the variant's scores by the factor.
const BESIDE_ALIBI: std::ops::RangeInclusive<f32> = 1.4e-20..=1.5e20;
/// Exclusive bound of thread blocks per launch.
const MAX_TILES: u64 = 1 << 31;

/// Checks sizes, scale and softcap.
pub(crate) fn problem(p: &Problem) -> Result<(), Error> {
    let lengths = lengths(p);
    let sizes = [
        ("batch", p.batch),
        lengths[0],
        lengths[1],
        lengths[2],
        lengths[3],
        ("heads_q", p.heads_q),
        ("heads_k", p.heads_k),
        ("head_dim", p.head_dim),
        ("head_dim_v", p.head_dim_v),
    ];
    if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
        return Err(Error::invalid(what, 0, "every size must be 1 or more"));
    }
    dtypes(p)?;
    if !p.heads_q.is_multiple_of(p.heads_k) {
        return Err(Error::invalid(
            "heads_q",
            p.heads_q,
            format_args!("it must be a multiple of heads_k = {}", p.heads_k),
        ));
    }
    let most = if p.latent().is_some() { MAX_LATENT_DIMS } else { [MAX_HEAD_DIM; 2] };
    for (at, (columns, most)) in p.columns().into_iter().zip(most).enumerate() {
        let what = ["head_dim", "head_dim_v"][at];
        if !columns.is_multiple_of(8) || columns > most {
            let [latent, values] = MAX_LATENT_DIMS;
            let remedy = match p.cache {
                Some(_) if p.latent().is_none() && (most + 1..=latent).contains(&columns) => format!(
                    "; k of a latent cache may have up to {latent}, with v as its first \
                     columns, up to {values}"
                ),
                _ if columns < most => padding(p, at, 8),
                _ => String::new(),
            };
            let reason = format_args!("kernels take multiples of 8 up to {most}{remedy}");
            return Err(Error::unsupported(format_args!("{what} {columns}"), reason));
        }
    }
    let odd = |(_, columns): &(_, usize)| !columns.is_multiple_of(16);
    let of_columns = ["head_dim", "head_dim_v"].into_iter().zip(p.columns());
    if let Some((what, columns)) = of_columns.filter(|_| p.is_eight_bit()).find(odd) {
        let remedy = padding(p, usize::from(what == "head_dim_v"), 16);
        let reason = format_args!("kernels take tensors of e4m3 in multiples of 16 columns{remedy}");
        return Err(Error::unsupported(format_args!("{what} {columns} of e4m3"), reason));
    }
    for (what, length) in lengths {
        if length > MAX_SEQLEN {
            let reason = format_args!(
                "a sequence, and all varlen sequences together, may have at most {MAX_SEQLEN} positions"
            );
            return Err(Error::unsupported(format_args!("{what} {length}"), reason));
        }
    }
    let heads = (p.batch as u64).checked_mul(p.heads_q as u64);
    if heads.is_none_or(|heads| heads >= MAX_TILES) {
        let feature = format_args!("batch {} with {} query heads", p.batch, p.heads_q);
        return Err(Error::unsupported(
            feature,
            "a launch may have less than 2^31 blocks, at least one per head; split the batch",
        ));
    }
    keys(p)?;
    latent::problem(p)?;
    invariance(p)?;
    mask(&p.mask)?;
    variant(p)?;
    scores(p)
}

/// Returns a problem's fields with their names in the request.
fn named(p: &Problem) -> Vec<(&'static str, String)> {
    // Lengths follow below. The gradients' dtype is that of Q, and a caller's tiles have their own error.
    let Problem {
        dtype,
        kv_dtype,
        o_dtype,
        grad_dtype: _,
        batch,
        seqlen_q: _,
        seqlen_k: _,
        heads_q,
        heads_k,
        head_dim,
        head_dim_v,
        mask,
        alignment,
        scale: _,
        softcap,
        alibi,
        sinks,
        bias,
        varlen,
        cache,
        splits,
        precision,
        invariance,
        variant,
        block_tile: _,
    } = *p;
    let optional = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
    let kv = match cache {
        Some(cache) if cache.listed => "lists of keys",
        Some(_) => "a cache",
        None => "tensors",
    };
    let mut all = vec![
        ("queries", if varlen.is_some() { "varlen" } else { "batched" }.to_owned()),
        ("kv", kv.to_owned()),
        ("dtype", dtype.name().to_owned()),
        ("o.dtype", o_dtype.name().to_owned()),
    ];
    let sizes = [
        ("batch", batch),
        ("heads_q", heads_q),
        ("heads_k", heads_k),
        ("head_dim", head_dim),
        ("head_dim_v", head_dim_v),
    ];
    // The number of rows on a KV cache follows from the cache's longest sequence.
    let lengths = lengths(p).into_iter().take(if cache.is_some() { 3 } else { 4 });
    all.extend(sizes.into_iter().chain(lengths).map(|(what, size)| (what, size.to_string())));
    all.push(("scale", p.softmax_scale().to_string()));
    all.push(("softcap", optional(softcap.map(|softcap| softcap.to_string()))));
    all.push(("alibi", alibi.to_string()));
    all.push(("mask", mask.to_string()));
    all.push(("alignment", format!("{alignment:?}")));
    if let Some(CacheShape { page, tiled, total_k, latent, equal_strides, .. }) = cache {
        all.push(("cache.keys.dtype", kv_dtype.name().to_owned()));
        all.push(("cache.keys.shape", format!("[.., {page}, {heads_k}, {head_dim}]")));
        all.push(("cache.values.shape", optional(latent.then(|| "a latent cache's".to_owned()))));
        let strides = if equal_strides { "the keys'" } else { "of their own" };
        all.push(("cache.values.strides", strides.to_owned()));
        all.push(("cache.total_k", optional(total_k.map(|keys| keys.to_string()))));
        let pages = if tiled { "dense, or pages of multiples of 16 keys" } else { "of other sizes" };
        all.push(("cache.paged", pages.to_owned()));
    }
    all.push(("precision", precision.name().to_owned()));
    all.push(("splits", format!("{splits:?}")));
    all.push(("invariance", format!("{invariance:?}")));
    all.push(("bias", optional(bias.map(|dtype| dtype.name().to_owned()))));
    all.push(("sinks", sinks.to_string()));
    all.push(("variant", optional(variant.map(|variant| variant.name().to_owned()))));
    all
}

/// Returns the error for a problem that differs from the plan's: it names the first different field.
pub(crate) fn another(asked: &Problem, planned: &Problem) -> Error {
    let mut pairs = named(asked).into_iter().zip(named(planned));
    match pairs.find(|(asked, planned)| asked != planned) {
        Some(((what, asked), (_, planned))) => {
            Error::invalid(what, asked, format_args!("the plan is for {planned}; make another plan"))
        }
        None => Error::invalid("request", "another one", "it must be the plan's problem; make another plan"),
    }
}

/// Returns the lengths with their names in the request.
fn lengths(p: &Problem) -> [(&'static str, usize); 4] {
    let [[_, rows_q, ..], [_, rows_k, ..], ..] = p.shapes();
    let [longest_q, longest_k] = match (p.varlen, p.cache) {
        (None, None) => ["seqlen_q", "seqlen_k"],
        (Some(_), None) => ["max_seqlen_q", "max_seqlen_k"],
        (_, Some(cache)) if cache.listed => ["seqlen_q", "topk"],
        (None, Some(_)) => ["seqlen_q", "cache.max_k"],
        (Some(_), Some(_)) => ["max_seqlen_q", "cache.max_k"],
    };
    [(longest_q, p.seqlen_q), ("rows of q", rows_q), (longest_k, p.seqlen_k), ("rows of k", rows_k)]
}

/// Checks the number in a mask.
fn mask(mask: &Mask) -> Result<(), Error> {
    match mask {
        Mask::Chunked { chunk: 0 } => Err(Error::invalid(
            "mask.chunk",
            0,
            "it must be 1 or more positions; use a causal mask for one chunk of all positions",
        )),
        _ => Ok(()),
    }
}

/// Checks the factor of scores, of which `with` names the other factors.
pub(super) fn at_most(factor: f32, with: &str) -> Result<(), Error> {
    if factor <= MAX_SCALE {
        return Ok(());
    }
    let reason = "scores of this scale overflow the exponents of f32, so the factor of scores must be at \
                  most 2^20; multiply q by a part of it";
    Err(Error::unsupported(format_args!("scale {factor:e}{with}"), reason))
}

/// Returns the remedy for a head dim of K, or of V (`at` is 1), that is no multiple of `of`.
fn padding(p: &Problem, at: usize, of: usize) -> String {
    let columns = p.columns()[at];
    let next = columns.next_multiple_of(of);
    match at {
        0 => {
            let tensors = if p.head_dim == p.head_dim_v { "q, k and v" } else { "q and k" };
            format!("; pad {tensors} with zeros to {next} columns, and set the scale of {columns} columns")
        }
        _ if p.latent().is_some() => String::new(),
        _ => format!("; pad v with zeros to {next} columns, which o then has"),
    }
}

/// Checks the score transformations. The kernel computes in base 2, so the converted numbers must also be
/// finite and above 0.
fn scores(p: &Problem) -> Result<(), Error> {
    let scale = p.softmax_scale();
    if !scale.is_finite() {
        return Err(Error::invalid("scale", scale, "it must be a finite number above 0"));
    }
    if scale <= 0.0 {
        return Err(Error::unsupported(
            format_args!("scale {scale}"),
            "kernels take row maxima before they scale, so the scale must be above 0; for a negative scale, \
             negate q",
        ));
    }
    if let Some(softcap) = p.softcap
        && !(softcap.is_finite() && softcap > 0.0)
    {
        return Err(Error::invalid("softcap", softcap, "it must be a finite number above 0, or none"));
    }
    let (scale_log2, ratio) = p.base_two();
    let derived = match p.softcap {
        None => [Some(("scale", scale, "scale * log2(e)", scale_log2)), None],
        Some(softcap) => [
            Some(("softcap", softcap, "softcap * log2(e)", scale_log2)),
            Some(("scale", scale, "scale / softcap", ratio)),
        ],
    };
    at_most(scale, "")?;
    let own = p.variant.is_some_and(|variant| variant.scores() != ScoreKinds::NONE);
    let beside = [
        ("ALiBi slopes", "slopes", p.alibi),
        ("a bias", "the bias", p.bias.is_some()),
        ("a variant's scores", "what is added to scores", own),
    ];
    let beside = beside.into_iter().find(|(.., is_there)| *is_there);
    if let Some((which, divided, _)) = beside.filter(|_| !BESIDE_ALIBI.contains(&scale_log2)) {
        let (what, value) = p.softcap.map_or(("scale", scale), |softcap| ("softcap", softcap));
        let reason =
            format_args!("kernels divide {divided} by this number, so it must be between 1e-20 and 1e20");
        return Err(Error::unsupported(format_args!("{what} {value:e} with {which}"), reason));
    }
    let mut wrong = derived.into_iter().flatten().filter(|(.., number)| !number.is_normal());
    wrong.next().map_or(Ok(()), |(what, value, formula, number)| {
        let expected = format_args!("{formula} is {number:e}, and must be a normal f32");
        Err(Error::invalid(what, format_args!("{value:e}"), expected))
    })
}
