//! The parameters of every score: scale, softcap, slopes.
use spec::PerHead;

/// Scale, softcap and slopes of a problem's scores.
pub trait Capped {
    /// See [`spec::FwdParams::scale_log2`].
    fn scale_log2(&self) -> f32;
    /// See [`spec::FwdParams::softcap`].
    fn softcap(&self) -> f32;
    /// See [`spec::FwdParams::alibi`]; for kernels that have slopes.
    #[inline(always)]
    fn alibi(&self) -> Option<&PerHead> {
        None
    }
}

/// No softcap: for schedules that do not take [`spec::Local`]. (With a reference to parameters in the loop of
/// [`crate::overlap`], LLVM numbers registers differently and uses up to 3 more.)
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
