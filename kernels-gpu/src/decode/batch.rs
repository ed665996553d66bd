//! The queries of each sequence: equal counts, or, in a mixed batch, the queries of sequences that have few.
use crate::lengths::{Span, Unchecked};
use core::ops::Deref;
use spec::{DecodeParams, FewParams, Lse, MlaHopperParams, States, Tensor, WithParams};

/// The parameters of decode, with the queries of each sequence.
pub trait Batch {
    /// The parameters of one sequence.
    type Own<'a>: Deref<Target = DecodeParams>
    where
        Self: 'a;
    /// The parameters of all sequences.
    fn decode(&self) -> &DecodeParams;
    /// Maximum number of queries per sequence that this kernel processes.
    fn most(&self) -> u32;
    /// Number of keys of sequence `i`; 0 if another kernel processes the sequence.
    fn keys(&self, i: u32) -> Unchecked;
    /// Whether this kernel processes sequence `i`.
    fn takes(&self, i: u32) -> bool;
    /// The parameters of sequence `i`. Precondition: this kernel processes the sequence ([`Self::takes`]).
    fn own(&self, i: u32) -> Self::Own<'_>;
}

impl Batch for DecodeParams {
    type Own<'a> = &'a DecodeParams;

    #[inline(always)]
    fn decode(&self) -> &DecodeParams {
        self
    }
    #[inline(always)]
    fn most(&self) -> u32 {
        self.q.rows
    }
    #[inline(always)]
    fn keys(&self, i: u32) -> Unchecked {
        Unchecked::load(self, i)
    }
    #[inline(always)]
    fn takes(&self, _: u32) -> bool {
        true
    }
    #[inline(always)]
    fn own(&self, _: u32) -> &DecodeParams {
        self
    }
}

/// Without states: the only tensor maps of a launch with shared prefixes belong to the prefixes' kernel.
impl Batch for MlaHopperParams {
    type Own<'a> = OwnParams;

    #[inline(always)]
    fn decode(&self) -> &DecodeParams {
        &self.decode
    }
    #[inline(always)]
    fn most(&self) -> u32 {
        self.decode.most()
    }
    #[inline(always)]
    fn keys(&self, i: u32) -> Unchecked {
        self.decode.keys(i)
    }
    #[inline(always)]
    fn takes(&self, i: u32) -> bool {
        self.decode.takes(i)
    }
    #[inline(always)]
    fn own(&self, _: u32) -> OwnParams {
        OwnParams(DecodeParams { states: States::NONE, ..self.decode })
    }
}

impl<P: Batch, X> Batch for WithParams<P, X> {
    type Own<'a>
        = P::Own<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn decode(&self) -> &DecodeParams {
        self.kernel.decode()
    }
    #[inline(always)]
    fn most(&self) -> u32 {
        self.kernel.most()
    }
    #[inline(always)]
    fn keys(&self, i: u32) -> Unchecked {
        self.kernel.keys(i)
    }
    #[inline(always)]
    fn takes(&self, i: u32) -> bool {
        self.kernel.takes(i)
    }
    #[inline(always)]
    fn own(&self, i: u32) -> P::Own<'_> {
        self.kernel.own(i)
    }
}

/// Changed parameters of one sequence.
pub struct OwnParams(DecodeParams);

impl Deref for OwnParams {
    type Target = DecodeParams;

    #[inline(always)]
    fn deref(&self) -> &DecodeParams {
        &self.0
    }
}

/// The queries of sequence `i`, if there are few.
#[inline(always)]
fn few(p: &FewParams, i: u32) -> Option<Span> {
    Span::load(&p.cu_seqlens_q, i, p.decode.q.rows).few(p.most)
}

/// Makes the rows `queries` of a tensor `[rows of all sequences][head][column]` the rows of every batch.
#[inline(always)]
fn rows(tensor: &Tensor, queries: Span) -> Tensor {
    let before = u64::from(queries.first()) * u64::from(tensor.row_bytes);
    Tensor { base: tensor.base.wrapping_add(before), rows: queries.rows(), batch_bytes: 0, ..*tensor }
}

impl Batch for FewParams {
    type Own<'a> = OwnParams;

    #[inline(always)]
    fn decode(&self) -> &DecodeParams {
        &self.decode
    }
    #[inline(always)]
    fn most(&self) -> u32 {
        self.most
    }
    #[inline(always)]
    fn keys(&self, i: u32) -> Unchecked {
        Unchecked::load(&self.decode, i).or_none(few(self, i).is_some())
    }
    #[inline(always)]
    fn takes(&self, i: u32) -> bool {
        few(self, i).is_some()
    }
    #[inline(always)]
    fn own(&self, i: u32) -> OwnParams {
        let DecodeParams { q, o, lse, .. } = self.decode;
        let queries = few(self, i).unwrap_or(Span::upto(0));
        // If the base is 0, the kernel stores no LSE.
        let before = if lse.base == 0 { 0 } else { u64::from(queries.first()) * 4 };
        OwnParams(DecodeParams {
            q: rows(&q, queries),
            o: rows(&o, queries),
            lse: Lse { base: lse.base.wrapping_add(before), batch_bytes: 0, ..lse },
            states: States::NONE,
            ..self.decode
        })
    }
}
