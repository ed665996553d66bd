//! The kinds of score modifications, as types, and the parameters of the modifications. A kernel has them in
//! addition to its mask.
use crate::{
    And, BlockMask, Element, Head, Integers, MaskKind, MaskMarker, PerHead, Plain, ScoreKinds, TensorMap,
};
use core::marker::PhantomData;

/// A score modification, as a type. A kernel loads a value of this type for a work tile. `(A, B)` applies
/// `A`, then `B`.
pub trait ScoreMarker: Copy {
    /// The kinds as a value.
    const KINDS: ScoreKinds = ScoreKinds::OWN;
    /// The modification's own parameters; see [`MaskMarker::Params`].
    type Params: Plain;
    /// The function that returns the table of the parameters whose gradient a backward pass can compute: f32
    /// `[query heads][entries]`. Kernels ask `ScoreMod::entry` which entry of a head a score reads.
    const TABLE: Option<fn(&Self::Params) -> Integers> = None;
}

/// Mask `Mask` with scores `S`, which kernels apply after the mask's own scores (softcap and slopes of
/// [`crate::Local`]).
#[derive(Clone, Copy, Debug)]
pub struct Scored<Mask, S>(PhantomData<(Mask, S)>);

impl<Mask: MaskMarker, S: ScoreMarker> MaskMarker for Scored<Mask, S> {
    const KIND: MaskKind = Mask::KIND;
    const SCORES: ScoreKinds = Mask::SCORES.and(S::KINDS);
    const LISTED: bool = Mask::LISTED;
    const READS_WINDOW: bool = Mask::READS_WINDOW;
    type Params = And<Mask::Params, S::Params>;
    fn block_mask(params: &Self::Params) -> Option<&BlockMask> {
        Mask::block_mask(&params.a)
    }
    fn table(params: &Self::Params) -> Option<Integers> {
        S::TABLE.map(|table| table(&params.b))
    }
}

/// The table of `A` or of `B`. If both have one, neither trains.
impl<A: ScoreMarker, B: ScoreMarker> ScoreMarker for (A, B) {
    const KINDS: ScoreKinds = A::KINDS.and(B::KINDS);
    type Params = And<A::Params, B::Params>;
    const TABLE: Option<fn(&Self::Params) -> Integers> = match (A::TABLE, B::TABLE) {
        (Some(_), None) | (None, Some(_)) => Some(table_of_two::<A, B>),
        _ => None,
    };
}

fn table_of_two<A: ScoreMarker, B: ScoreMarker>(And { a, b }: &And<A::Params, B::Params>) -> Integers {
    match (A::TABLE, B::TABLE) {
        (Some(table), _) => table(a),
        (None, Some(table)) => table(b),
        (None, None) => Integers::NONE,
    }
}

/// An attention sink (Xiao et al., 2023; gpt-oss): one more key that every query sees, with a logit per
/// query head and value 0.
#[derive(Clone, Copy, Debug)]
pub struct Sink {
    /// The natural logit of the head.
    pub logit: f32,
}

contract::described! {
    /// Parameters of [`Sink`].
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SinkParams {
        /// Device address of the first logit, one f32 per query head, a multiple of 4. Minus infinity means
        /// no sink.
        base: u64,
    }
}

/// ALiBi slopes under a mask that hides every key behind the query's position. Their parameters are one slope
/// per sequence and head.
#[derive(Clone, Copy, Debug)]
pub struct CausalAlibi {
    /// The amount that a score loses per key of distance, before scaling.
    pub slope: f32,
}

contract::described! {
    /// An additive bias of element type `T`: `[batch or 1][heads or 1][queries or 1][keys]`.
    #[derive(Clone, Copy, Debug)]
    pub struct Bias<T> {
        /// Device address of the head's first row.
        base: u64,
        /// Bytes from one row to the next; 0 if all queries share a row.
        row_bytes: u32,
        /// Index of the last row.
        last_row: u32,
        /// Index of a row's last 32-bit word.
        last_word: u32,
        /// The position of row 0's query ([`crate::Window::shift`]).
        shift: i32,
        /// Factor that converts the bias to unscaled scores.
        factor: f32,
        /// The element type.
        element: PhantomData<T>,
    }
}

contract::described! {
    /// Parameters of [`Bias`]. Keys are contiguous. Rows and keys count from the first query and the first
    /// key of a sequence, on varlen tensors too. Kernels clamp a row or key that does not exist to the last
    /// one.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BiasParams {
        /// Device address of the first element, a multiple of 4.
        base: u64,
        /// Bytes from one sequence to the next, a multiple of 4; 0 if all sequences share their rows.
        batch_bytes: u64,
        /// Bytes from one query head to the next, a multiple of 4; 0 if all heads share their rows.
        head_bytes: u64,
        /// Bytes from one query to the next, a multiple of 4; 0 if all queries share a row.
        row_bytes: u32,
        /// Number of rows of a head, at least 1.
        rows: u32,
        /// Number of elements per row, at least 1. A row of an odd number of 16-bit elements is followed by
        /// one more element, so that the row's last 32-bit word exists.
        keys: u32,
        /// Padding: 0.
        reserved: u32,
    }
}
impl SinkParams {
    /// The logits of the heads.
    #[inline(always)]
    pub const fn logits(&self) -> PerHead {
        let value = f32::NEG_INFINITY;
        PerHead { base: self.base, sequence_bytes: 0, head_bytes: 4, value, reserved: 0 }
    }
}

impl<T> Bias<T> {
    /// The bias of a head of a sequence. A 32-bit word has `per_word` elements.
    #[inline(always)]
    pub fn of(p: &BiasParams, of: Head, shift: i32, per_word: u32) -> Self {
        let sequence = (of.sequence() as u64).wrapping_mul(p.batch_bytes);
        let head = (of.head() as u64).wrapping_mul(p.head_bytes);
        Bias {
            base: p.base.wrapping_add(sequence).wrapping_add(head),
            row_bytes: p.row_bytes,
            last_row: p.rows - 1,
            last_word: (p.keys - 1) / per_word,
            shift,
            factor: 1.0,
            element: PhantomData,
        }
    }

    /// This bias, with the factor `factor`.
    #[inline(always)]
    pub fn times(self, factor: f32) -> Self {
        Bias { factor, ..self }
    }
}

contract::no_padding! {
    SinkParams { base }
    BiasParams { base, batch_bytes, head_bytes, row_bytes, rows, keys, reserved }
}

/// Mask `Mask` with an additive bias of element type `T`, which the producer of a Hopper kernel copies beside
/// keys, block by block. No other kernel takes it. The bias is added after all other modifications.
#[derive(Clone, Copy, Debug)]
pub struct TmaBias<Mask, T>(PhantomData<(Mask, T)>);

impl<Mask: MaskMarker, T: Element> MaskMarker for TmaBias<Mask, T> {
    const KIND: MaskKind = Mask::KIND;
    const SCORES: ScoreKinds = Mask::SCORES.and(ScoreKinds::bias(T::DTYPE));
    const LISTED: bool = Mask::LISTED;
    const READS_WINDOW: bool = Mask::READS_WINDOW;
    const STAGED_BYTES: usize = T::BYTES;
    type Params = And<TmaBiasParams, Mask::Params>;
    fn block_mask(params: &Self::Params) -> Option<&BlockMask> {
        Mask::block_mask(&params.b)
    }
}

impl<Mask, T> TmaBias<Mask, T> {
    /// Stages of the bias.
    pub const STAGES: usize = 2;
}

/// Parameters of [`TmaBias`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TmaBiasParams {
    /// `[batches][heads][queries][keys]`: boxes of a panel's columns and of [`crate::AttnInfo::Q_BOX_ROWS`]
    /// rows. Extents of 1 broadcast batches and heads.
    pub map: TensorMap,
    /// 1 if each sequence has its own rows, 0 if sequences share them.
    pub of_batches: u32,
    /// 1 if each query head has its own rows, 0 if heads share them.
    pub of_heads: u32,
    /// Padding: 0.
    pub reserved: [u32; 14],
}
contract::no_padding! { TmaBiasParams { map, of_batches, of_heads, reserved } }

impl ScoreMarker for Sink {
    const KINDS: ScoreKinds = ScoreKinds::SINK;
    type Params = SinkParams;
}
impl ScoreMarker for CausalAlibi {
    const KINDS: ScoreKinds = ScoreKinds::ALIBI;
    type Params = PerHead;
}
impl<T: Element> ScoreMarker for Bias<T> {
    const KINDS: ScoreKinds = ScoreKinds::bias(T::DTYPE);
    type Params = BiasParams;
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{Bf16, Causal, DType, F16, F32, Full, Local};
    use std::string::ToString;

    #[test]
    fn kinds_of_types_and_their_names() {
        let name = |kinds: ScoreKinds| kinds.name(DType::F16).to_string();
        assert_eq!(name(Causal::SCORES), "");
        assert_eq!(name(<Scored<Local, Sink>>::SCORES), "_sink");
        assert_eq!(name(<Scored<Causal, CausalAlibi>>::SCORES), "_alibi");
        assert_eq!(name(<Scored<Full, Bias<F16>>>::SCORES), "_bias");
        assert_eq!(name(<Scored<Full, Bias<F32>>>::SCORES), "_bias_f32");
        assert_eq!(name(<Scored<Full, (Bias<Bf16>, Sink)>>::SCORES), "_sink_bias_bf16");
        assert_eq!(<Scored<Scored<Causal, Sink>, Bias<F16>>>::SCORES.bias, Some(DType::F16));
        assert_eq!(<(Bias<F16>, Bias<F32>)>::KINDS, ScoreKinds::OWN);
        assert_eq!(<Scored<Causal, Sink>>::KIND, MaskKind::Causal);
    }
}
