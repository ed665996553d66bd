//! Mask kinds, as values and as types.

/// The mask kind, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// All keys.
    Full,
    /// Keys up to the query's position.
    Causal,
    /// The general kind: windows, softcap, ALiBi slopes.
    Local,
}
impl MaskKind {
    /// The name in entry symbols.
    pub const fn name(self) -> &'static str {
        match self {
            MaskKind::Full => "full",
            MaskKind::Causal => "causal",
            MaskKind::Local => "local",
        }
    }
}

/// The mask kind, as a type.
pub trait MaskMarker: Copy {
    /// The type as a value.
    const KIND: MaskKind;
}
/// Every query sees every key.
#[derive(Clone, Copy, Debug)]
pub struct Full;
/// Query `i` sees keys `0..=i + shift`.
#[derive(Clone, Copy, Debug)]
pub struct Causal;
/// The general kind: [`crate::Window`], softcap, and ALiBi slopes.
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
