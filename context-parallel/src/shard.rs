//! The part of an attention that a rank has.
use crate::batches::Offsets;
use crate::chunks::Chunks;
use crate::comm::{Comm, NOWHERE};
use crate::tiles::{Sides, Tile};
use crate::transport::Transport;
use ferroflash::Error;
use ferroflash::driver::Driver;
#[cfg(feature = "training")]
use ferroflash::request::AttentionBackward;
use ferroflash::request::{
    AttentionRequest, Invariance, KeysValues, LseView, Mask, Precision, Queries, Scores, Scratch, TensorView,
};
use std::ops::Range;

/// A rank's tensors, which have the rows of its positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shard {
    pub q: TensorView,
    pub k: TensorView,
    pub v: TensorView,
    pub o: TensorView,
    pub lse: LseView,
    pub mask: Sides,
    pub scores: Scores,
}

impl Shard {
    /// Checks a rank's request. Whatever it finds, no other rank has got anything.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] or [`Error::Unsupported`], naming the value.
    pub fn new<D: Driver, T: Transport<D>>(
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        request: &AttentionRequest<'_>,
    ) -> Result<Self, Error> {
        let [rank, ranks] = [comm.rank(), comm.ranks()];
        if chunks.ranks() != ranks {
            let expected = format_args!("the transport has {ranks} ranks; give chunks of all of them");
            return Err(Error::invalid("chunks.ranks", chunks.ranks(), expected));
        }
        let unsupported = |feature: &str, remedy: &str| Err(Error::unsupported(feature, remedy));
        let dense = "take tensors; varlen sequences lie one behind the other in a batch of one, and \
                     `Chunks::packed` has their lengths";
        let KeysValues::Tensors { k, v } = request.kv else {
            return unsupported("keys of this layout on several ranks", dense);
        };
        if request.queries != Queries::Batched {
            return unsupported("varlen queries on several ranks", dense);
        }
        if !matches!(request.mask, Mask::Full | Mask::Causal | Mask::Window { .. }) {
            let remedy = "take a full mask, a causal mask or a window";
            return unsupported(&format!("mask {} on several ranks", request.mask), remedy);
        }
        let Scores { alibi, sinks, bias, .. } = &request.scores;
        let others = [
            ("alibi", alibi.is_some()),
            ("sinks", sinks.is_some()),
            ("bias", bias.is_some()),
            ("max_logits", request.max_logits.is_some()),
            ("max_logits_head", request.max_logits_head.is_some()),
            ("entropy", request.entropy.is_some()),
            ("precision", request.precision != Precision::Inputs),
            ("invariance", request.invariance != Invariance::None),
            ("variant", request.variant.is_some()),
            ("config", request.config.is_some()),
        ];
        if let Some((name, _)) = others.iter().find(|(_, is_set)| *is_set) {
            let remedy = "leave it out: tiles of a sequence take a scale and a softcap";
            return unsupported(&format!("{name} on several ranks"), remedy);
        }
        let Some(lse) = request.lse else {
            return Err(Error::invalid(
                "lse",
                "none",
                "partial results are merged by it; set it with `.lse(..)`",
            ));
        };
        let rows = chunks.rows(rank);
        let AttentionRequest { q, o, scores, .. } = *request;
        let batch = q.shape[0];
        for (name, view) in [("q.shape", q), ("k.shape", k), ("v.shape", v), ("o.shape", o)] {
            if view.shape[..2] != [batch, rows] {
                let expected = format_args!("rank {rank} has {rows} positions of {batch} batches, as q has");
                return Err(Error::invalid(name, format!("{:?}", view.shape), expected));
            }
        }
        // Transfers trust the tensors, so the library checks them first: as the tensors of one launch.
        comm.check(&with_rows(request).scratch(Scratch::Fastest))?;
        Ok(Shard { q, k, v, o, lse, mask: request.mask.sides(), scores })
    }

    /// Returns the request of a tile on these keys and values, with the O and the LSE of the rank.
    pub fn request(
        &self,
        tile: &Tile,
        keys: &[TensorView; 2],
        offsets: &Offsets,
    ) -> AttentionRequest<'static> {
        let [k, v] = keys.map(|view| rows(&view, &tile.key_rows));
        let [q, o] = [self.q, self.o].map(|view| rows(&view, &tile.rows));
        let request = match &tile.sequences {
            None => AttentionRequest::dense(q, k, v, o),
            Some(of) => offsets.request(of, [q, k, v, o]),
        };
        let lse = lse_rows(&self.lse, &tile.rows);
        request.mask(tile.mask).alignment(tile.alignment).scores(self.scores).lse(lse)
    }

    /// Returns whether the batch is empty: an attention of nothing.
    pub const fn is_empty(&self) -> bool {
        self.q.shape[0] == 0
    }

    /// Checks that K and V are contiguous.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if they are not.
    pub fn contiguous_keys(&self) -> Result<(), Error> {
        contiguous("k.strides", &self.k)?;
        contiguous("v.strides", &self.v)
    }

    /// Checks the tensors of a backward pass. Returns dQ, dK and dV.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`], naming the tensor.
    #[cfg(feature = "training")]
    pub fn gradients<D: Driver, T: Transport<D>>(
        &self,
        comm: &Comm<'_, D, T>,
        backward: &AttentionBackward<'_>,
    ) -> Result<[TensorView; 3], Error> {
        let AttentionBackward { d_o, d_lse, dq, dk, dv, .. } = *backward;
        for (name, view) in [("dq.strides", dq), ("dk.strides", dk), ("dv.strides", dv)] {
            contiguous(name, &view)?;
        }
        let shapes = [("dq.shape", dq, self.q), ("dk.shape", dk, self.k), ("dv.shape", dv, self.v)];
        for (name, view, of) in shapes.into_iter().chain([("d_o.shape", d_o, self.o)]) {
            if view.shape != of.shape {
                let expected = format_args!("it must be that of its tensor, {:?}", of.shape);
                return Err(Error::invalid(name, format!("{:?}", view.shape), expected));
            }
        }
        let mut own = *backward;
        own.forward = with_rows(&backward.forward);
        own.d_lse = d_lse.map(|view| lse_row(view, 5));
        (own.d_o, own.dq, own.dk, own.dv) = (row(d_o, 4), row(dq, 6), row(dk, 7), row(dv, 8));
        comm.check(&own.scratch(Scratch::Fastest))?;
        Ok([dq, dk, dv])
    }

    /// Returns the bytes of one row of a tensor, of all batches.
    pub const fn row_bytes(view: &TensorView) -> u64 {
        (view.shape[0] * view.shape[2] * view.shape[3]) as u64 * view.element_bytes()
    }
}

/// Returns the request, or that of one row of nowhere if it has none: the library refuses tensors without
/// rows, but a rank may have no positions. Its batches, heads and dtypes are those of the other ranks.
fn with_rows<'a>(request: &AttentionRequest<'a>) -> AttentionRequest<'a> {
    let mut one = *request;
    (one.q, one.o) = (row(one.q, 0), row(one.o, 1));
    if let Some([k, v]) = one.kv.tensors_mut() {
        (*k, *v) = (row(*k, 2), row(*v, 3));
    }
    one.lse = one.lse.map(|view| lse_row(view, 4));
    one
}

/// Returns the tensor, or tensor `index` of nowhere if it has no rows.
fn row(view: TensorView, index: u64) -> TensorView {
    let [batch, 0, heads, columns] = view.shape else { return view };
    TensorView::bshd(NOWHERE + (index << 50), 1 << 48, view.dtype, [batch, 1, heads, columns])
}

/// Returns the LSE, or one of nowhere if it has no rows.
fn lse_row(view: LseView, index: u64) -> LseView {
    let [batch, heads, 0] = view.shape else { return view };
    let address = NOWHERE + (index << 50) + (1 << 49);
    LseView { address, elements: 1 << 40, shape: [batch, heads, 1], strides: [heads as i64, 1], ..view }
}

/// Checks that a tensor is contiguous, because transports send bytes.
pub(crate) fn contiguous(name: &'static str, view: &TensorView) -> Result<(), Error> {
    let whole = TensorView::bshd(view.address, view.elements, view.dtype, view.shape);
    if (0..4).all(|dim| view.shape[dim] <= 1 || view.strides[dim] == whole.strides[dim]) {
        return Ok(());
    }
    let expected = "it must be [batch, rows, heads, head_dim], contiguous: ranks send it as bytes";
    Err(Error::invalid(name, format!("{:?} for shape {:?}", view.strides, view.shape), expected))
}

/// Returns some rows of a tensor.
pub(crate) fn rows(view: &TensorView, rows: &Range<usize>) -> TensorView {
    let mut part = *view;
    let first = rows.start as u64 * view.strides[1] as u64;
    part.address = part.address.wrapping_add(first * view.element_bytes());
    part.elements = part.elements.saturating_sub(first);
    part.shape[1] = rows.len();
    part
}

/// Returns some rows of an LSE.
pub(crate) fn lse_rows(view: &LseView, rows: &Range<usize>) -> LseView {
    let mut part = *view;
    let first = rows.start as u64 * view.row_stride as u64;
    part.address = part.address.wrapping_add(first * 4);
    part.elements = part.elements.saturating_sub(first);
    part.shape[2] = rows.len();
    part
}
