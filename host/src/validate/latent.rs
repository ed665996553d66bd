//! Checks of latent caches (MLA).
use super::cache::KEYS;
use crate::request::{Append, KvPages, Mask};
use crate::{Error, Problem};

/// Refuses each feature that decode kernels for latent caches lack.
pub(super) fn problem(p: &Problem) -> Result<(), Error> {
    let Some(cache) = p.cache.filter(|cache| cache.latent) else { return Ok(()) };
    if p.scale.is_none() {
        let expected = "a latent cache has no default scale; set the model's, for example 1 / sqrt(192) for \
                        keys of 128 columns and 64 rotary columns before absorption";
        return Err(Error::invalid("scale", "none", expected));
    }
    let refused = |feature: &str, reason: &str| {
        Err(Error::unsupported(format_args!("{feature} on a latent cache"), reason))
    };
    let (left, _) = p.mask.sides();
    match () {
        () if cache.dtype != p.dtype => {
            refused(&format!("dtype {}", cache.dtype.name()), "latent caches have the queries' dtype")
        }
        () if p.varlen.is_some() => refused(
            "varlen queries",
            "all sequences must have equal query counts; make one request per query count",
        ),
        () if matches!(p.mask, Mask::Window { .. }) && left.is_some() => {
            refused("a window", "on a latent cache, every query sees its sequence from the first key on")
        }
        () if matches!(p.mask, Mask::Prefix(_) | Mask::Chunked { .. } | Mask::Bits(_)) => {
            refused(&format!("mask {}", p.mask), "kernels for latent caches have full and causal masks")
        }
        () if p.bias.is_some() => refused("a bias", "kernels for latent caches add no bias"),
        () if p.softcap.is_some() => refused("softcap", "kernels for latent caches have no softcap"),
        () if p.alibi => refused("ALiBi slopes", "kernels for latent caches have no ALiBi"),
        () => Ok(()),
    }
}

/// Performs the checks that only appends to latent caches need, in addition to the checks of all appends.
pub(super) fn append(a: &Append) -> Result<(), Error> {
    let [_, _, heads, head_dim] = a.k.shape;
    let KvPages { keys, values, .. } = &a.pages;
    if !head_dim.is_multiple_of(16) {
        let feature = format_args!("head_dim {head_dim} of an append to a latent cache");
        return Err(Error::unsupported(
            feature,
            "kernels copy rows in two halves, each a multiple of 8 columns",
        ));
    }
    if keys.shape[2..] != [heads, head_dim] {
        let expected =
            format_args!("it must be [pages, page, {heads}, {head_dim}], with the rows' heads and columns");
        return Err(Error::invalid(KEYS.shape, format!("{:?}", keys.shape), expected));
    }
    if keys.dtype != a.k.dtype {
        let feature = format_args!("{} rows and an {} latent cache", a.k.dtype.name(), keys.dtype.name());
        return Err(Error::unsupported(feature, "a latent cache has its rows' dtype"));
    }
    let is_part = a.v.address == a.k.address && a.v.shape[3] == values.shape[3];
    if !is_part || (0..3).any(|dim| a.v.shape[dim] != a.k.shape[dim] || a.v.strides[dim] != a.k.strides[dim])
    {
        let expected = "it must be the first columns of k, like the cache's values; use Append::latent";
        return Err(Error::invalid("v", format_args!("{:?} at {:#x}", a.v.shape, a.v.address), expected));
    }
    Ok(())
}
