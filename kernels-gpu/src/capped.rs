//! The parameters of scores in every kernel: scale, softcap, slopes.
use cuda_std::math::opaque;
use spec::PerHead;

/// Scale, softcap and slopes of a problem's scores.
pub trait Capped {
    /// See [`spec::FwdParams::scale_log2`].
    fn scale_log2(&self) -> f32;
    /// See [`spec::FwdParams::softcap`].
    fn softcap(&self) -> f32;
    /// See [`spec::FwdParams::alibi`]. `None` in kernels that support no slopes.
    #[inline(always)]
    fn alibi(&self) -> Option<&PerHead> {
        None
    }
}

/// Parameters without softcap: for schedules that do not support [`spec::Local`]. (If the loop of
/// [`crate::forward::overlap`] contains a reference to parameters, LLVM numbers registers differently and
/// uses up to 3 more.)
pub struct Uncapped;
impl Capped for Uncapped {
    #[inline(always)]
    fn scale_log2(&self) -> f32 {
        1.0
    }
    #[inline(always)]
    fn softcap(&self) -> f32 {
        0.0
    }
}

/// A scale of scores times the scale of keys. If the product is 0, the scores get the smallest scale instead:
/// a scale of 0 would give NaN where a mask has minus infinity.
#[inline(always)]
pub fn times(scale: f32, of_keys: f32) -> f32 {
    if scale * of_keys < f32::MIN_POSITIVE { f32::MIN_POSITIVE } else { scale * of_keys }
}

/// The factor of the products of keys with this scale: the scale of scores, or, if there is a softcap, the
/// factor before the softcap.
#[inline(always)]
pub fn factor(p: &impl Capped, of_keys: f32) -> f32 {
    // `opaque`: LLVM would keep the result of the comparison in a register, from tile to tile.
    let softcap = f32::from_bits(opaque(p.softcap().to_bits()));
    times(if softcap == 0.0 { p.scale_log2() } else { softcap }, of_keys)
}

/// Parameters for the products of keys that may have a scale.
pub struct Rescaled<'p, P> {
    of: &'p P,
    factor: Option<f32>,
    is_capped: bool,
}

impl<'p, P: Capped> Rescaled<'p, P> {
    /// The parameters `of`, with this [`factor`] if keys have a scale. `may_cap` says whether the kernel
    /// supports a softcap.
    #[inline(always)]
    pub fn new(of: &'p P, factor: Option<f32>, may_cap: bool) -> Self {
        Rescaled { of, factor, is_capped: may_cap && of.softcap() != 0.0 }
    }
}

impl<P: Capped> Capped for Rescaled<'_, P> {
    #[inline(always)]
    fn scale_log2(&self) -> f32 {
        match self.factor {
            Some(factor) if !self.is_capped => factor,
            _ => self.of.scale_log2(),
        }
    }
    #[inline(always)]
    fn softcap(&self) -> f32 {
        match self.factor {
            Some(factor) if self.is_capped => factor,
            _ => self.of.softcap(),
        }
    }
    #[inline(always)]
    fn alibi(&self) -> Option<&PerHead> {
        self.of.alibi()
    }
}
