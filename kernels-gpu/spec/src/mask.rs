//! Which keys a query sees, by value and by type.

/// Which keys a query sees, by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// All of them.
    Full,
    /// Those at or before it.
    Causal,
    /// A window on either side, each side also unbounded, softcap, and ALiBi slopes.
    Local,
}
impl MaskKind {
    /// Its name in entry symbols.
    pub const fn name(self) -> &'static str {
        match self {
            MaskKind::Full => "full",
            MaskKind::Causal => "causal",
            MaskKind::Local => "local",
        }
    }
}

/// Which keys a query sees, by type.
pub trait MaskMarker: Copy {
    /// The same as a value.
    const KIND: MaskKind;
}
/// Every query sees every key.
#[derive(Clone, Copy, Debug)]
pub struct Full;
/// Query `i` sees keys `0..=i + shift`.
#[derive(Clone, Copy, Debug)]
pub struct Causal;
/// The general entry: [`crate::Window`] on both sides, softcap, and ALiBi slopes.
#[derive(Clone, Copy, Debug)]
pub struct Local;
impl MaskMarker for Full {
    const KIND: MaskKind = MaskKind::Full;
}
impl MaskMarker for Causal {
    const KIND: MaskKind = MaskKind::Causal;
}
impl MaskMarker for Local {
    const KIND: MaskKind = MaskKind::Local;
}
