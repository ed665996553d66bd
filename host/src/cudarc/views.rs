//! The parts of a request in cudarc's slices: their constructors.
use super::memory::{Integer, Memory, MemoryMut, Number, Slice, SliceMut, SlotNumber};
use crate::DType;
use crate::request::{
    AlibiSlopes, Bias, Index, KvPages, KvScale, LseView, MaskBits, Positions, Rotary, Sinks, Slots,
    TableGradient, TensorView, TokenScales, VarlenKeys, VarlenQueries,
};

/// A tensor that a launch reads.
pub type Tensor<'a> = TensorView<Slice<'a>>;
/// A tensor that a launch writes.
pub type TensorMut<'a> = TensorView<SliceMut<'a>>;
/// The pages of a KV cache, for reading.
pub type Pages<'a> = KvPages<Slice<'a>>;
/// The pages of a KV cache, for writing.
pub type PagesMut<'a> = KvPages<SliceMut<'a>>;
/// The KV cache of some sequences.
pub type Cache<'a> = crate::request::KvCache<Slice<'a>>;
/// A latent cache, with a list of keys for each query.
pub type Listed<'a> = crate::request::ListedKeys<Slice<'a>>;
/// Lengths, page indices, or offsets of sequences.
pub type Integers<'a> = Index<Slice<'a>>;
/// A partial state of a merge.
pub type State<'a> = crate::request::State<Slice<'a>>;
/// An append to a KV cache.
pub type Append<'a> = crate::request::Append<Slice<'a>, SliceMut<'a>>;
/// The rotary embedding of an append.
pub type Turn<'a> = Rotary<Slice<'a>, SliceMut<'a>>;

/// Declares the constructors of tensors and pages, for reading and for writing.
macro_rules! constructors {
    ($($slice:ident of $memory:ident $($mutable:ident)?),*) => {$(
        impl<'a> TensorView<$slice<'a>> {
            /// Creates a contiguous tensor `[batch, seqlen, heads, head_dim]`. Varlen sequences are `[1,
            /// rows, heads, head_dim]`.
            pub fn of<T: Number>(data: &'a $($mutable)? impl $memory<T>, shape: [usize; 4]) -> Self {
                TensorView::bshd($slice::new(data), u64::MAX, T::DTYPE, shape)
            }
        }

        impl<'a> KvPages<$slice<'a>> {
            /// Creates pages from two contiguous buffers `[pages, page, heads, head_dim]`, one of keys and
            /// one of values. A dense KV cache has one page per sequence.
            pub fn of<T: Number>(
                keys: &'a $($mutable)? impl $memory<T>,
                values: &'a $($mutable)? impl $memory<T>,
                shape: [usize; 4],
            ) -> Self {
                let [keys, values] = [$slice::new(keys), $slice::new(values)];
                let view = |data| TensorView::bshd(data, u64::MAX, T::DTYPE, shape);
                KvPages::new(view(keys), view(values))
            }

            /// Sets the scales of an int8 cache: contiguous, `[pages, page, heads]` of keys and of values. An
            /// append writes them.
            ///
            /// ```compile_fail,E0308
            /// # use cudarc::driver::CudaSlice;
            /// # use ferroflash::cudarc::PagesMut;
            /// fn shared(keys: &mut CudaSlice<i8>, values: &mut CudaSlice<i8>, scales: &CudaSlice<f32>) {
            ///     let _ = PagesMut::of(keys, values, [2, 16, 2, 64]).token_scales(scales, scales);
            /// }
            /// ```
            pub fn token_scales(
                self,
                keys: &'a $($mutable)? impl $memory<f32>,
                values: &'a $($mutable)? impl $memory<f32>,
            ) -> Self {
                let heads = self.keys.shape[2];
                let scales = |data| KvScale::Tokens(TokenScales::contiguous(data, u64::MAX, heads));
                let (keys, values) = (scales($slice::new(keys)), scales($slice::new(values)));
                self.scales(keys, values)
            }
        }
    )*};
}
constructors!(Slice of Memory, SliceMut of MemoryMut mut);

/// Returns the shape of an output of rows, for queries or an O of this shape.
const fn rows([batch, seqlen, heads, _]: [usize; 4]) -> [usize; 3] {
    [batch, heads, seqlen]
}

/// Declares the constructors of parts in one buffer.
macro_rules! parts {
    ($(
        $(#[$doc:meta])* $part:ident<$slice:ident>::$name:ident $(<$number:ident: $bound:ident>)? (
            $data:ident: $memory:ty $(, $argument:ident: $type:ty)*
        ) = $of:expr;
    )*) => {$(
        impl<'a> $part<$slice<'a>> {
            $(#[$doc])*
            pub fn $name$(<$number: $bound>)?($data: $memory $(, $argument: $type)*) -> Self {
                $of
            }
        }
    )*};
}
parts! {
    /// Creates contiguous rows `[batch, heads, seqlen]` that a launch reads, such as the LSE of a forward or
    /// its gradient, for queries or an O of this shape, `[batch, seqlen, heads, head_dim]`.
    LseView<Slice>::read(data: &'a impl Memory<f32>, shape: [usize; 4]) =
        LseView::contiguous(Slice::new(data), u64::MAX, rows(shape));

    /// Creates a contiguous output of rows `[batch, heads, seqlen]`, for queries or an O of this shape,
    /// `[batch, seqlen, heads, head_dim]`.
    LseView<SliceMut>::of(data: &'a mut dyn MemoryMut<f32>, shape: [usize; 4]) =
        LseView::contiguous(SliceMut::of(data), u64::MAX, rows(shape));

    /// Creates an index of all integers of `data`, `i32` or `u32`.
    Index<Slice>::of<T: Integer>(data: &'a impl Memory<T>) = Index::new(Slice::new(data), data.bytes() / 4);

    /// Creates the keys of sequences whose rows are all valid.
    VarlenKeys<Slice>::of<T: Integer>(cu_seqlens_k: &'a impl Memory<T>, max_seqlen_k: usize) =
        VarlenKeys::new(Index::of(cu_seqlens_k), max_seqlen_k);

    /// Creates the queries of `n` sequences from `n + 1` offsets.
    VarlenQueries<Slice>::of<T: Integer>(cu_seqlens_q: &'a impl Memory<T>, max_seqlen_q: usize) =
        VarlenQueries::of_all(Index::of(cu_seqlens_q), max_seqlen_q);

    /// Creates slots: one per token.
    Slots<Slice>::of<T: SlotNumber>(data: &'a impl Memory<T>) = {
        let elements = data.bytes() / size_of::<T>() as u64;
        Slots { address: Slice::new(data), elements, wide: T::WIDE }
    };

    /// Creates positions: one per token.
    Positions<Slice>::of<T: SlotNumber>(data: &'a impl Memory<T>) = {
        let Slots { address, elements, wide } = Slots::of(data);
        Positions { address, elements, wide }
    };

    /// Creates slopes `[heads]`, which all sequences share.
    AlibiSlopes<Slice>::of(data: &'a impl Memory<f32>) = AlibiSlopes::new(Slice::new(data), u64::MAX);

    /// Creates attention sinks: one logit per query head.
    Sinks<Slice>::of(data: &'a impl Memory<f32>) = Sinks { address: Slice::new(data), elements: u64::MAX };

    /// Creates memory for the gradient of sinks: one f32 per query head.
    Sinks<SliceMut>::gradient(data: &'a mut dyn MemoryMut<f32>) =
        Sinks { address: SliceMut::of(data), elements: u64::MAX };

    /// Creates memory for the gradient of a table: one f32 per entry.
    TableGradient<SliceMut>::of(data: &'a mut dyn MemoryMut<f32>) =
        TableGradient { address: SliceMut::of(data), elements: u64::MAX };

    /// Creates a contiguous bias `[batch or 1, heads or 1, seqlen_q or 1, seqlen_k]`.
    Bias<Slice>::of<T: Number>(data: &'a impl Memory<T>, shape: [usize; 4]) =
        Bias::rows(Slice::new(data), u64::MAX, T::DTYPE, shape, shape[3]);

    /// Creates memory for the gradient of a contiguous bias, of the bias' shape.
    Bias<SliceMut>::gradient<T: Number>(data: &'a mut dyn MemoryMut<T>, shape: [usize; 4]) =
        Bias::rows(SliceMut::of(data), u64::MAX, T::DTYPE, shape, shape[3]);

    /// Creates a mask of contiguous rows `[batch or 1, heads or 1, seqlen_q]` of `columns / 8` bytes, rounded
    /// up. `columns` is the last extent of `shape`. Each row has one bit for each of the sequence's last
    /// `columns` keys.
    MaskBits<Slice>::of(data: &'a impl Memory<u8>, shape: [usize; 4]) =
        MaskBits::contiguous(Slice::new(data), u64::MAX, shape);

    /// Creates one scale per key head of an e4m3 cache, or with strides `[heads, 1]` one per sequence and key
    /// head.
    KvScale<Slice>::heads(data: &'a impl Memory<f32>, strides: [i64; 2]) =
        KvScale::Device { address: Slice::new(data), elements: u64::MAX, strides };
}

impl<'a> KvPages<Slice<'a>> {
    /// Creates pages of [`TensorView::interleaved`]: keys and values in one contiguous buffer.
    pub fn of_both<T: Number>(both: &'a impl Memory<T>, shape: [usize; 4], hnd: bool) -> Self {
        let [keys, values] = Tensor::interleaved(Slice::new(both), u64::MAX, T::DTYPE, shape, hnd);
        KvPages::new(keys, values)
    }
}

impl<'a> KvPages<SliceMut<'a>> {
    /// Creates pages with keys and values in one buffer. Values begin half a page stride behind the keys of
    /// their page.
    pub fn of_both(keys: TensorMut<'a>) -> Self {
        let half = (keys.strides[0] / 2).max(0) as u64 * keys.element_bytes();
        let (dtype, shape, strides) = (keys.dtype, keys.shape, keys.strides);
        KvPages::new(keys, TensorView::new(SliceMut::again(half), u64::MAX, dtype, shape, strides))
    }

    /// Creates the pages of a latent cache (MLA), contiguous `[pages, page, 1, head_dim]`; see
    /// [`KvPages::latent`].
    pub fn of_latent(rows: TensorMut<'a>, head_dim_v: usize) -> Self {
        let (dtype, strides, [pages, page, heads, _]) = (rows.dtype, rows.strides, rows.shape);
        let shape = [pages, page, heads, head_dim_v];
        KvPages::new(rows, TensorView::new(SliceMut::again(0), u64::MAX, dtype, shape, strides))
    }

    /// Creates the pages of a latent cache whose rows have their own scales, u8 `[pages, page, 1, 656]`; see
    /// [`KvPages::latent_scaled`].
    pub fn of_latent_scaled(mut rows: TensorMut<'a>, head_dim_v: usize) -> Self {
        rows.dtype = DType::E4m3Scaled;
        Self::of_latent(rows, head_dim_v)
    }
}

impl<'a> Rotary<Slice<'a>, SliceMut<'a>> {
    /// Rotates the queries `q`, `[1, tokens, heads, head_dim]`, in place.
    pub fn queries_in_place(self, q: TensorMut<'a>) -> Self {
        self.queries(TensorView::new(Slice::again(), u64::MAX, q.dtype, q.shape, q.strides), q)
    }
}
