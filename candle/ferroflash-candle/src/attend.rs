//! Parameters of the scores, for keys of every layout.
use crate::errors::invalid;
use candle::Tensor;
#[cfg(feature = "cuda")]
use ferroflash::cudarc::OwnVariant;
use ferroflash::request::{Invariance, Mask, Precision};

/// Parameters of scores that candle-flash-attn's functions do not have. Functions that return the LSE and
/// functions on KV caches take them.
#[derive(Clone, Debug)]
#[must_use]
pub struct Attend {
    pub(crate) softmax_scale: f32,
    /// The numbers of visible keys before and after a query's position; `None` is all.
    window: [Option<usize>; 2],
    /// 0 is off.
    pub(crate) softcap: f32,
    chunk: Option<usize>,
    /// The number of a sequence's last keys that have bits in `mask_bits`.
    pub(crate) mask_keys: usize,
    pub(crate) invariance: Invariance,
    pub(crate) precision: Precision,
    pub(crate) extras: Extras<Tensor>,
    #[cfg(feature = "cuda")]
    pub(crate) variant: Option<(OwnVariant, Vec<Tensor>)>,
}

/// Declares the optional tensors of [`Attend`].
macro_rules! extras {
    ($($name:ident),*) => {
        /// A value for each optional tensor of [`Attend`].
        #[derive(Clone, Debug)]
        pub(crate) struct Extras<T> {
            $(pub $name: Option<T>,)*
        }

        impl<T> Extras<T> {
            const NONE: Self = Extras { $($name: None,)* };

            /// Returns the values that are there, with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, &T)> {
                let all = [$((stringify!($name), &self.$name),)*];
                all.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)))
            }

            /// Returns the results of a function of the values and their names.
            #[cfg(feature = "cuda")]
            pub fn map<'a, U>(&'a self, of: impl Fn(&'static str, &'a T) -> U) -> Extras<U> {
                Extras { $($name: self.$name.as_ref().map(|value| of(stringify!($name), value)),)* }
            }
        }
    };
}
extras!(alibi_slopes, sinks, bias, mask_bits, prefix_lengths, seqused_q);

impl Attend {
    /// Creates the parameters of attention to every key. `softmax_scale` is the factor of the scores, above
    /// 0.
    pub const fn full(softmax_scale: f32) -> Self {
        Attend {
            softmax_scale,
            window: [None; 2],
            softcap: 0.0,
            chunk: None,
            mask_keys: 0,
            invariance: Invariance::None,
            precision: Precision::Inputs,
            extras: Extras::NONE,
            #[cfg(feature = "cuda")]
            variant: None,
        }
    }

    /// Creates the parameters of causal attention: a query sees keys up to its own position. The last query
    /// aligns with the last key.
    pub fn causal(softmax_scale: f32) -> Self {
        Attend::full(softmax_scale).window(None, Some(0))
    }

    pub(crate) fn causal_or_full(softmax_scale: f32, causal: bool) -> Self {
        Attend::full(softmax_scale).window(None, causal.then_some(0))
    }

    /// Sets a window: keys from `left` before to `right` after the query's own position. `None` is all keys.
    pub fn window(self, left: Option<usize>, right: Option<usize>) -> Self {
        Attend { window: [left, right], ..self }
    }

    /// Sets the softcap: scores become `softcap * tanh(score / softcap)`. By candle-flash-attn's rule, 0 and
    /// negative values turn it off.
    pub fn softcap(self, softcap: f32) -> Self {
        Attend { softcap: if softcap <= 0.0 { 0.0 } else { softcap }, ..self }
    }

    /// Sets ALiBi slopes, f32 `[heads]`.
    pub fn alibi_slopes(mut self, slopes: &Tensor) -> Self {
        self.extras.alibi_slopes = Some(slopes.clone());
        self
    }

    /// Sets attention sinks, f32 `[heads]`: one logit per head.
    pub fn sinks(mut self, sinks: &Tensor) -> Self {
        self.extras.sinks = Some(sinks.clone());
        self
    }

    /// Sets a bias that the kernel adds to the scaled scores, f16, bf16 or f32: `(batch or 1, heads or 1,
    /// queries or 1, keys)`, contiguous in its last dimension. Rows of 16-bit elements must begin at
    /// multiples of 4 bytes. For an odd number of keys, pad the rows: `bias.pad_with_zeros(3, 0,
    /// 1)?.narrow(3, 0, keys)?`. For varlen sequences and KV caches, `batch` counts sequences, and `queries`
    /// and `keys` are the longest sequence's.
    pub fn bias(mut self, bias: &Tensor) -> Self {
        self.extras.bias = Some(bias.clone());
        self
    }

    /// Shows each query the keys whose bits are 1, in place of a window. `bits` is u8 `(batch or 1, heads or
    /// 1, queries, keys / 8 rounded up)`; the batch may be left out. The least significant bit comes first.
    /// The bits belong to the last `keys` keys of each sequence; every query sees the keys before these. A
    /// tree of drafts has one key per node.
    pub fn mask_bits(mut self, bits: &Tensor, keys: usize) -> Self {
        (self.extras.mask_bits, self.mask_keys) = (Some(bits.clone()), keys);
        self
    }

    /// Shows each query the first keys of its sequence, and the keys up to its own position (prefix-LM), in
    /// place of a window: the number of keys of each sequence's prefix, i32 or u32 `[batch]`.
    pub fn prefix_lengths(mut self, lengths: &Tensor) -> Self {
        self.extras.prefix_lengths = Some(lengths.clone());
        self
    }

    /// Sets the number of used queries of each varlen sequence, i32 or u32 `[sequences]`. The other rows of
    /// the sequence are padding. The last used query aligns with the last key.
    pub fn seqused_q(mut self, used: &Tensor) -> Self {
        self.extras.seqused_q = Some(used.clone());
        self
    }

    /// Shows each query the keys of its chunk, up to its own position (chunked-local attention, Llama 4), in
    /// place of a window. `chunk` is the number of keys per chunk.
    pub fn chunked(self, chunk: usize) -> Self {
        Attend { chunk: Some(chunk), ..self }
    }

    /// Sets the precision of the products, for dense tensors and functions without gradients. A precision of
    /// eight bits is faster and less accurate than that of the inputs.
    pub fn precision(self, precision: Precision) -> Self {
        Attend { precision, ..self }
    }

    /// Sets what the bits of a sequence's result may depend on (batch invariance), for functions without
    /// gradients.
    pub fn invariance(self, invariance: Invariance) -> Self {
        Attend { invariance, ..self }
    }

    /// Runs a variant of your own ([`mod@ferroflash::variant`]). Its mask and its scores replace the other
    /// ones. `tables` are f32, u32 or i32, contiguous; they must be on the device of the queries.
    #[cfg(feature = "cuda")]
    pub fn variant(self, variant: &OwnVariant, tables: &[Tensor]) -> Self {
        Attend { variant: Some((variant.clone(), tables.to_vec())), ..self }
    }

    /// Checks that no extra wants a gradient, which no function computes.
    pub(crate) fn is_untracked(&self) -> candle::Result<()> {
        #[cfg(feature = "cuda")]
        let tables = self.variant.iter().flat_map(|(_, tables)| tables);
        #[cfg(not(feature = "cuda"))]
        let tables = std::iter::empty();
        let mut all = self.extras.named().chain(tables.map(|table| ("variant.table", table)));
        let expected = "it has no gradient here; pass a detached tensor: `tensor.detach()`";
        match all.find(|(_, extra)| extra.dtype().is_float() && extra.track_op()) {
            Some((name, _)) => Err(invalid(name, "a tensor with a gradient", expected)),
            None => Ok(()),
        }
    }

    /// Returns the name of an extra that has one value per query or key of a sequence.
    pub(crate) fn counts(&self) -> Option<&'static str> {
        #[cfg(feature = "cuda")]
        let variant = self.variant.is_some();
        #[cfg(not(feature = "cuda"))]
        let variant = false;
        let mut names = self.extras.named().map(|(name, _)| name);
        let own = [("chunk", self.chunk.is_some()), ("variant", variant)];
        let own = own.into_iter().find_map(|(name, is_there)| is_there.then_some(name));
        names.find(|name| !["alibi_slopes", "sinks"].contains(name)).or(own)
    }

    /// Returns the extras of `count` sequences from `first` on, whose longest has `queries` queries.
    #[cfg(feature = "cuda")]
    pub(crate) fn sequences(&self, first: usize, count: usize, queries: usize) -> candle::Result<Self> {
        let of = |tensor: &Tensor, rank: usize| match tensor.rank() == rank && tensor.dims()[0] > 1 {
            true => tensor.narrow(0, first, count),
            false => Ok(tensor.clone()),
        };
        let rows = |tensor: &Tensor| match of(tensor, 4)? {
            tensor if tensor.rank() == 4 && tensor.dims()[2] > queries => tensor.narrow(2, 0, queries),
            tensor => Ok(tensor),
        };
        let mut own = self.clone();
        let Extras { bias, mask_bits, prefix_lengths, seqused_q, .. } = &self.extras;
        own.extras.bias = bias.as_ref().map(rows).transpose()?;
        own.extras.mask_bits = mask_bits.as_ref().map(rows).transpose()?;
        let lengths = |of_all: &Option<Tensor>| of_all.as_ref().map(|lengths| of(lengths, 1)).transpose();
        own.extras.prefix_lengths = lengths(prefix_lengths)?;
        own.extras.seqused_q = lengths(seqused_q)?;
        Ok(own)
    }

    /// Returns the mask for at most this number of keys. By candle-flash-attn's rule, a window that covers
    /// all keys is no window. Batch-invariant attention has the same mask for all numbers of keys.
    pub(crate) fn mask<M>(&self, seqlen_k: usize) -> Mask<M> {
        let seqlen_k = if self.invariance == Invariance::None { seqlen_k } else { usize::MAX };
        let side = |keys: Option<usize>| {
            keys.filter(|keys| *keys <= seqlen_k).and_then(|keys| u32::try_from(keys).ok())
        };
        if let Some(chunk) = self.chunk {
            return Mask::Chunked { chunk: u32::try_from(chunk).unwrap_or(u32::MAX) };
        }
        match self.window.map(side) {
            [None, None] => Mask::Full,
            [None, Some(0)] => Mask::Causal,
            [left, right] => Mask::Window { left, right },
        }
    }
}
