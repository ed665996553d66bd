//! Selection of Hopper's kernels for products of e4m3, which no portable kernel has.
use super::refusals::{no_tiles, without_precision};
use super::rule::Case;
use super::{Choice, Query, rules};
use crate::problem::MAX_ROWS;
use crate::{AttnInfo, DType, Error, MaskKind};

/// Checks that kernels of [`Precision::Fp8`](spec::Precision::Fp8) take the request's tensors, mask and
/// scores, and run on the device. Few rows on a KV cache run if the request names a kernel.
///
/// # Errors
/// Returns [`Error::Unsupported`], which names what these kernels lack, and the remedy.
pub(super) fn takes(q: &Query<'_>, is_named: bool) -> Result<(), Error> {
    let p = q.problem;
    let scores = p.alibi || p.sinks || p.bias.is_some();
    let mask = matches!(q.kind.mask, MaskKind::Full | MaskKind::Causal | MaskKind::Local);
    let kv_dtype = if p.cache.is_some() { DType::E4m3 } else { p.dtype };
    let halves =
        [p.kv_dtype, p.o_dtype] == [kv_dtype, p.dtype] && matches!(p.dtype, DType::F16 | DType::Bf16);
    let (what, reason) = match () {
        () if p.cache.is_some_and(|cache| cache.latent || cache.listed) => (
            "a latent cache".to_owned(),
            "its kernels take tensors, and KV caches of e4m3 with keys and values",
        ),
        () if p.cache.is_some() && p.kv_dtype != DType::E4m3 => {
            (format!("a KV cache of {}", p.kv_dtype.name()), "its kernels take KV caches of e4m3")
        }
        () if p.cache.is_some() && p.rows() <= MAX_ROWS && !is_named => (
            format!("a KV cache with {} rows (queries x query heads per key head)", p.rows()),
            "up to 64 rows wait for the bytes of the cache, and this precision copies the values first",
        ),
        () if scores || !mask || p.variant.is_some() => {
            let scores = if scores { " with these scores" } else { "" };
            let reason = "its kernels take full and causal masks and windows, without scores but softcap";
            (format!("mask {}{scores}", p.mask), reason)
        }
        () if !halves && !p.is_eight_bit() => {
            ("these dtypes".to_owned(), "its kernels take Q, K, V and O of f16, or all of bf16")
        }
        () if p.columns().iter().any(|columns| *columns > 128) => {
            (p.named_columns(), "its kernels take head dims up to 128")
        }
        () if !q.on.tensor_maps || q.on.arch() != 90 => (
            q.on.name.to_string(),
            "its kernels need compute capability 9.0, as of an H100, and a driver of CUDA 12.3 or newer",
        ),
        () => return Ok(()),
    };
    Err(without_precision(p, what, reason))
}

/// Returns the kernel among the best ones.
///
/// # Errors
/// Returns [`Error::Unsupported`] if the kernel does not accept the tensors.
pub(super) fn choose(
    q: &Query<'_>,
    best: &[&'static AttnInfo],
    all: &[&'static AttnInfo],
) -> Result<Choice, Error> {
    let choice = rules::choose(&Case { q, kernels: best, all }).ok_or_else(|| no_tiles(q, all))?;
    match q.layout.suits(choice.kernel) {
        Ok(()) => Ok(choice),
        Err(reason) => {
            let remedy = match q.problem.cache {
                None => "copy q, k, v and o into contiguous tensors",
                Some(_) => "use pages of a multiple of 8 keys, and contiguous q and o",
            };
            let reason = format_args!("{reason}; {remedy}");
            Err(Error::unsupported(format_args!("precision fp8 of {}", q.problem), reason))
        }
    }
}
