//! The forms of attention of a spread sequence.
use crate::chunks::Chunks;
use crate::comm::Comm;
use crate::forward::Forward;
use crate::gather::Gather;
#[cfg(feature = "training")]
use crate::gradients::Backward;
use crate::ring::Ring;
use crate::transport::Transport;
use crate::ulysses;
use ferroflash::Error;
use ferroflash::driver::Driver;
#[cfg(feature = "training")]
use ferroflash::request::AttentionBackward;
use ferroflash::request::{AttentionRequest, Scores, Scratch};
use std::fmt;

/// A form says which tensors travel. All forms take and give the same tensors: a rank has the rows of its
/// [`Chunks`]. All ranks use one form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// K and V travel from rank to rank, beside the computation. Each step leaves O as a state in f32, which
    /// is rounded once, where the library has such states; elsewhere O has two roundings, as dQ, dK and dV
    /// have: each step rounds, and one launch merges or adds the steps in f32. Many sequences share one
    /// varlen launch per step.
    Ring,
    /// Each rank gets K and V of all ranks, before it computes. O of a causal mask or a window has one
    /// rounding. The parts of dK and dV go to the ranks to which they belong, which add them in f32.
    Gather,
    /// DeepSpeed-Ulysses: an all-to-all gives each rank all positions of some heads, and a second one brings
    /// O home. Query heads must be a multiple of the ranks. Key heads must be a multiple of the ranks, or a
    /// divisor: then several ranks get a copy of a key head, and their dK and dV are added at home.
    Ulysses,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 3] = [Form::Ring, Form::Gather, Form::Ulysses];

    /// Computes attention of a sequence that is spread over ranks. Every rank calls this function with its
    /// own tensors, which have the rows of its [`Chunks`]; the mask is that of the whole sequence, or of
    /// each of several sequences.
    ///
    /// The request is an [`AttentionRequest::dense`] with an LSE. `k` and `v` are contiguous. Its scratch
    /// memory is a workspace of [`attention_workspace`](Form::attention_workspace) bytes. The function
    /// enqueues, and does not wait for the stream. Repeated calls give identical bits.
    ///
    /// # Errors
    /// Returns the errors of the library's launches and of the transport, or [`Error::Unsupported`], which
    /// names what only one rank can do.
    ///
    /// # Safety
    /// - The requirements of [`Attention::enqueue`](ferroflash::Attention::enqueue) for the request, on
    ///   `comm`'s stream.
    /// - All ranks call this function with equal forms, chunks, masks, heads, head dims and dtypes.
    pub unsafe fn attention<D: Driver, T: Transport<D>>(
        self,
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        request: &AttentionRequest<'_>,
    ) -> Result<(), Error> {
        let call = Call { form: self, chunks, request };
        let call = format_args!("forward pass, {call}");
        // SAFETY: the caller makes the promises.
        unsafe {
            match self {
                Form::Ring => Forward::<Ring>::new(comm, chunks, request)?.run(comm, call),
                Form::Gather => Forward::<Gather>::new(comm, chunks, request)?.run(comm, call),
                Form::Ulysses => ulysses::Forward::new(comm, chunks, request)?.run(comm, call),
            }
        }
    }

    /// Returns the bytes of workspace of an [`attention`](Form::attention). The request's scratch memory does
    /// not matter.
    ///
    /// # Errors
    /// Returns the errors of [`attention`](Form::attention) that do not depend on a device.
    pub fn attention_workspace<D: Driver, T: Transport<D>>(
        self,
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        request: &AttentionRequest<'_>,
    ) -> Result<u64, Error> {
        let request = &request.scratch(Scratch::Fastest);
        Ok(match self {
            Form::Ring => Forward::<Ring>::new(comm, chunks, request)?.memory.needed(0),
            Form::Gather => Forward::<Gather>::new(comm, chunks, request)?.memory.needed(0),
            Form::Ulysses => ulysses::Forward::new(comm, chunks, request)?.memory.needed(0),
        })
    }

    /// Computes the gradients of an [`attention`](Form::attention). Every rank calls this function with its
    /// own tensors. `backward.forward` is the forward's request, whose O and LSE count the keys of all ranks.
    /// The gradients are contiguous. The scratch memory is a workspace of
    /// [`backward_workspace`](Form::backward_workspace) bytes. Repeated calls give identical bits.
    ///
    /// # Errors
    /// The errors of [`attention`](Form::attention).
    ///
    /// # Safety
    /// The requirements of [`attention`](Form::attention), for the backward pass.
    #[cfg(feature = "training")]
    pub unsafe fn backward<D: Driver, T: Transport<D>>(
        self,
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        backward: &AttentionBackward<'_>,
    ) -> Result<(), Error> {
        let call = Call { form: self, chunks, request: &backward.forward };
        let d_lse = if backward.d_lse.is_some() { " and d_lse" } else { "" };
        let call = format_args!("backward pass of d_o{d_lse}, {call}");
        // SAFETY: the caller makes the promises.
        unsafe {
            match self {
                Form::Ring => Backward::<Ring>::new(comm, chunks, backward)?.run(comm, call),
                Form::Gather => Backward::<Gather>::new(comm, chunks, backward)?.run(comm, call),
                Form::Ulysses => ulysses::Backward::new(comm, chunks, backward)?.run(comm, call),
            }
        }
    }

    /// Returns the bytes of workspace of a [`backward`](Form::backward). The request's scratch memory does
    /// not matter.
    ///
    /// # Errors
    /// Returns the errors of [`backward`](Form::backward) that do not depend on transfers.
    #[cfg(feature = "training")]
    pub fn backward_workspace<D: Driver, T: Transport<D>>(
        self,
        comm: &Comm<'_, D, T>,
        chunks: &Chunks,
        backward: &AttentionBackward<'_>,
    ) -> Result<u64, Error> {
        let backward = &backward.scratch(Scratch::Fastest);
        match self {
            Form::Ring => Backward::<Ring>::new(comm, chunks, backward)?.workspace(comm),
            Form::Gather => Backward::<Gather>::new(comm, chunks, backward)?.workspace(comm),
            Form::Ulysses => ulysses::Backward::new(comm, chunks, backward)?.workspace(comm),
        }
    }
}

/// The parameters that all ranks share, for [`Transport::begin`].
struct Call<'a, 'b> {
    form: Form,
    chunks: &'a Chunks,
    request: &'a AttentionRequest<'b>,
}

impl fmt::Display for Call<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { form, chunks, request: AttentionRequest { q, kv, mask, scores, .. } } = self;
        let [batch, _, heads, columns] = q.shape;
        let heads_k = kv.tensors().map_or(0, |[k, _]| k.shape[2]);
        let (dtype, positions, digest) = (q.dtype.name(), chunks.positions(), chunks.digest());
        write!(f, "{form:?}: batch {batch}, {heads} heads on {heads_k} of {columns} {dtype}, mask {mask}")?;
        let Scores { scale, softcap, .. } = scores;
        write!(f, ", scale {scale:?}, softcap {softcap:?}, {positions} positions in chunks {digest:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::Threads;
    use ferroflash::driver::{SimDriver, SimStream};
    use ferroflash::request::{LseView, Mask, TensorView};
    use ferroflash::{Attention, DType};
    use std::time::Duration;

    /// Several ranks refuse by name the requests that only one rank can compute.
    #[test]
    fn other_requests_are_refused_by_name() -> Result<(), Error> {
        let attention = Attention::new(SimDriver::new("a100")?);
        let view =
            |address: u64, heads| TensorView::bshd(address << 40, 1 << 20, DType::F16, [1, 64, heads, 64]);
        let lse = |heads| LseView::contiguous(5 << 40, 1 << 20, [1, heads, 64]);
        let of = |queries, keys| {
            let [k, v] = [2, 3].map(|address| view(address, keys));
            AttentionRequest::dense(view(1, queries), k, v, view(4, queries)).lse(lse(queries))
        };
        let apart = |mut view: TensorView| {
            view.strides = [64 * 2 * 128, 2 * 128, 128, 1];
            view
        };
        let [k, v] = [2, 3].map(|address| view(address, 2));
        let without = AttentionRequest::dense(view(1, 2), k, v, view(4, 2));
        let keys_apart = AttentionRequest::dense(view(1, 2), apart(k), v, view(4, 2)).lse(lse(2));
        let queries_apart = AttentionRequest::dense(apart(view(1, 2)), k, v, view(4, 2)).lse(lse(2));
        let wrong = [
            (Form::Ring, 1, Chunks::zigzag(64, 2)?, of(2, 2), "chunks.ranks: 2"),
            (Form::Ring, 1, Chunks::zigzag(63, 1)?, of(2, 2), "q.shape"),
            (Form::Ring, 1, Chunks::zigzag(64, 1)?, without, "invalid lse"),
            (
                Form::Ring,
                1,
                Chunks::zigzag(64, 1)?,
                of(2, 2).mask(Mask::Chunked { chunk: 8 }),
                "mask chunked 8",
            ),
            (Form::Ring, 1, Chunks::zigzag(64, 1)?, of(2, 2).config("fwd"), "config on several ranks"),
            (Form::Ring, 1, Chunks::zigzag(64, 1)?, keys_apart, "k.strides"),
            (Form::Gather, 1, Chunks::zigzag(64, 1)?, keys_apart, "k.strides"),
            (Form::Ulysses, 1, Chunks::zigzag(64, 1)?, queries_apart, "q.strides"),
            (Form::Ulysses, 2, Chunks::zigzag(128, 2)?, of(3, 3), "3 query heads on 2 ranks"),
            (Form::Ulysses, 4, Chunks::zigzag(256, 4)?, of(12, 3), "3 key heads on 4 ranks"),
        ];
        for (form, ranks, chunks, request, name) in wrong {
            let transports = Threads::new(ranks, Duration::from_secs(1));
            let comm = Comm::new(&attention, &transports[0], &SimStream);
            let error = form.attention_workspace(&comm, &chunks, &request).expect_err(name).to_string();
            assert!(error.contains(name), "{error}");
        }
        Ok(())
    }
}
