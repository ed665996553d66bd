//! Checks of latent caches (MLA).
use crate::request::{Append, KvPages, KvScale, Mask};
use crate::{DType, Error, Problem};
use spec::E4m3Scaled;

/// The remedy for features that attention on tensors has.
const ON_TENSORS: &str = "project the latents up to k and v of each head, and run attention on these tensors";

/// Refuses each feature that decode kernels for latent caches lack.
pub(super) fn problem(p: &Problem) -> Result<(), Error> {
    if p.cache.is_some_and(|cache| cache.listed) {
        listed(p)?;
    }
    if p.latent().is_none() {
        return Ok(());
    }
    if p.scale.is_none() {
        let expected = "a latent cache has no default scale; set the model's, for example 1 / sqrt(192) for \
                        keys of 128 columns and 64 rotary columns before absorption";
        return Err(Error::invalid("scale", "none", expected));
    }
    let refused = |feature: &str, reason: &str| {
        Err(Error::unsupported(format_args!("{feature} on a latent cache"), reason))
    };
    if p.varlen.is_some() {
        return refused(
            "varlen queries",
            "all sequences must have equal query counts; make one request per query count",
        );
    }
    let is_window = matches!(p.mask, Mask::Window { .. }) && p.mask.sides().0.is_some();
    if is_window || matches!(p.mask, Mask::Prefix(_) | Mask::Chunked { .. } | Mask::Bits(_)) {
        let reason =
            format!("kernels for latent caches have full and causal masks; use one, or {ON_TENSORS}");
        return refused(&format!("mask {}", p.mask), &reason);
    }
    let scores = [
        ("bias", "a bias", p.bias.is_some()),
        ("softcap", "softcap", p.softcap.is_some()),
        ("alibi", "ALiBi slopes", p.alibi),
    ];
    let Some((field, feature, _)) = scores.into_iter().find(|(.., is_there)| *is_there) else {
        return Ok(());
    };
    let reason = format!("kernels for latent caches have none; leave {field} out, or {ON_TENSORS}");
    refused(feature, &reason)
}

/// Checks the rows of pages that may be a latent cache of eight bits: their length, and their scale.
pub(super) fn rows(pages: &KvPages) -> Result<(), Error> {
    let KvPages { keys, values, scales: [k_scale, v_scale] } = pages;
    let columns = keys.shape[3];
    match keys.dtype {
        DType::E4m3Scaled if columns != E4m3Scaled::ROW_BYTES || values.shape[3] > E4m3Scaled::SCALED => {
            let expected = format_args!(
                "rows of e4m3_scaled have {} bytes, and values are at most their first {} columns",
                E4m3Scaled::ROW_BYTES,
                E4m3Scaled::SCALED
            );
            let shape = format!("{:?}, values {:?}", keys.shape, values.shape);
            Err(Error::invalid("cache.keys.shape", shape, expected))
        }
        DType::E4m3 if pages.latent_columns().is_some() && *v_scale != KvScale::One && v_scale != k_scale => {
            let expected =
                "the values of a latent cache are columns of its keys, and have their scale: omit it";
            Err(Error::invalid("cache.v_scale", format!("{v_scale:?}"), expected))
        }
        _ => Ok(()),
    }
}

/// Refuses what lists of keys do not go with.
fn listed(p: &Problem) -> Result<(), Error> {
    let refused = |feature: std::fmt::Arguments<'_>, reason: &str| {
        Err(Error::unsupported(format_args!("{feature} with lists of keys (`indices`)"), reason))
    };
    if p.latent().is_none() {
        let reason = "an entry names one row, which is a key and its value; pass the keys' first columns, or \
                      all of them, as values, or run attention under a mask of bits on tensors";
        return refused(format_args!("a cache of keys and values"), reason);
    }
    if p.varlen.is_some() || p.seqlen_q != 1 {
        let reason = "each query has its list, so that no sequence needs bounds; pass q and o as [queries, \
                      1, heads, columns], with the queries of all sequences";
        return match p.varlen {
            Some(_) => refused(format_args!("varlen queries"), reason),
            None => refused(format_args!("{} queries per batch", p.seqlen_q), reason),
        };
    }
    if p.mask != Mask::Full {
        let reason = "a query's list is its mask; list the keys that the query sees, and set no mask";
        return refused(format_args!("mask {}", p.mask), reason);
    }
    let slots = (p.batch as u64).saturating_mul(p.heads_k as u64).saturating_mul(p.seqlen_k as u64);
    if slots >= 1 << 32 {
        let reason = "a launch counts entries in 32 bits; split the queries";
        return refused(format_args!("{slots} entries"), reason);
    }
    Ok(())
}

/// Checks the new rows of a cache whose rows have their own scales, and the columns that rotate.
fn scaled(a: &Append) -> Result<(), Error> {
    let (dtype, columns) = (a.k.dtype, a.k.shape[3]);
    if dtype != DType::Bf16 || columns != E4m3Scaled::COLUMNS {
        let feature = format_args!("rows of {columns} {} and an e4m3_scaled latent cache", dtype.name());
        let reason = format_args!("such a cache takes rows of {} bf16", E4m3Scaled::COLUMNS);
        return Err(Error::unsupported(feature, reason));
    }
    if let Some(rotary) = &a.rotary
        && rotary.first_column < E4m3Scaled::SCALED
    {
        let feature = format_args!("rotary.first_column {} of rows with scales", rotary.first_column);
        let reason =
            format_args!("kernels rotate the columns without a scale, from {} on", E4m3Scaled::SCALED);
        return Err(Error::unsupported(feature, reason));
    }
    Ok(())
}

/// Performs the checks that only appends to latent caches need, in addition to the checks of all appends.
pub(super) fn append(a: &Append) -> Result<(), Error> {
    let head_dim = a.k.shape[3];
    let KvPages { keys, values, .. } = &a.pages;
    if !head_dim.is_multiple_of(16) {
        let feature = format_args!("head_dim {head_dim} of an append to a latent cache");
        return Err(Error::unsupported(
            feature,
            "kernels copy rows in two halves, each a multiple of 8 columns",
        ));
    }
    if keys.dtype != a.k.dtype && ![DType::E4m3, DType::E4m3Scaled].contains(&keys.dtype) {
        let feature = format_args!("{} rows and an {} latent cache", a.k.dtype.name(), keys.dtype.name());
        return Err(Error::unsupported(feature, "a latent cache has its rows' dtype, or is e4m3"));
    }
    if keys.dtype == DType::E4m3Scaled {
        scaled(a)?;
    }
    if keys.dtype == DType::E4m3 && !head_dim.is_multiple_of(32) {
        let feature = format_args!("head_dim {head_dim} of an append to an e4m3 latent cache");
        let reason = "kernels write rows in two halves, each of whole 16 bytes: use a multiple of 32 columns";
        return Err(Error::unsupported(feature, reason));
    }
    let is_part = a.v.address == a.k.address && a.v.shape[3] == values.shape[3];
    if !is_part || (0..3).any(|dim| a.v.shape[dim] != a.k.shape[dim] || a.v.strides[dim] != a.k.strides[dim])
    {
        let expected = "it must be the first columns of k, like the cache's values; pass the same tensor";
        return Err(Error::invalid("v", format_args!("{:?} at {:#x}", a.v.shape, a.v.address), expected));
    }
    Ok(())
}
