//! The parameters of scores in every kernel: scale, softcap, slopes.
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
/// [`crate::overlap`] contains a reference to parameters, LLVM numbers registers differently and uses up to 3
/// more.)
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
