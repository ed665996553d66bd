//! Selection of Hopper's kernels for products of e4m3, which no portable kernel has.
use super::precision::{Lack, mask_with, of_cache, of_dtypes};
use super::refusals::no_tiles;
use super::rule::Case;
use super::{Choice, Query, rules};
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
    if let Some(lack) = of_cache(p, DType::E4m3, is_named) {
        return Err(lack.of(p));
    }
    if scores || !mask || p.variant.is_some() {
        let reason = "its kernels take full and causal masks and windows, without scores but softcap";
        return Err(Lack::new(mask_with(p, p.alibi), reason).of(p));
    }
    if let Some(lack) = of_dtypes(p, DType::E4m3).filter(|_| !p.is_eight_bit()) {
        return Err(lack.of(p));
    }
    let lack = match () {
        () if p.columns().iter().any(|columns| *columns > 256) => {
            Lack::new(p.named_columns(), "its kernels take head dims up to 256")
        }
        () if !q.on.tensor_maps || q.on.arch() != 90 => Lack::new(
            q.on.name.clone(),
            "its kernels need compute capability 9.0, as of an H100, and a driver of CUDA 12.3 or newer",
        ),
        () => return Ok(()),
    };
    Err(lack.of(p))
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
