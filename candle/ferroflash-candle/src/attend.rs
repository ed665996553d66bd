//! Parameters of the scores, for keys of every layout.
use crate::errors::invalid;
use candle::Tensor;
#[cfg(feature = "cuda")]
use ferroflash::cudarc::OwnVariant;
use ferroflash::request::Mask;

/// Parameters of scores that candle-flash-attn's functions do not have. Functions that return the LSE and
/// functions on KV caches take them.
#[derive(Clone, Debug)]
#[must_use]
#[non_exhaustive]
pub struct Attend {
    /// Factor of the scores, above 0.
    pub softmax_scale: f32,
    /// Number of visible keys before a query's position; `None` is all.
    pub window_size_left: Option<usize>,
    /// Number of visible keys after a query's position; `None` is all.
    pub window_size_right: Option<usize>,
    /// The softcap: scores become `softcap * tanh(score / softcap)`. 0, negative values and `None` turn it
    /// off.
    pub softcap: Option<f32>,
    /// ALiBi slopes, f32 `[heads]`.
    pub alibi_slopes: Option<Tensor>,
    /// Attention sinks, f32 `[heads]`: one logit per head.
    pub sinks: Option<Tensor>,
    /// A bias that the kernel adds to the scaled scores, f16, bf16 or f32:
    /// `(batch or 1, heads or 1, queries or 1, keys)`.
    pub bias: Option<Tensor>,
    /// A mask of bits, in place of a window: the bits, and the number of a sequence's last keys that have
    /// bits.
    pub mask_bits: Option<(Tensor, usize)>,
    /// The number of keys of each sequence's prefix, which every query sees (prefix-LM), in place of a
    /// window: i32 or u32 `[batch]`.
    pub prefix_lengths: Option<Tensor>,
    /// The number of keys per chunk (chunked-local attention, Llama 4), in place of a window.
    pub chunk: Option<usize>,
    /// A variant of your own, and its tables: f32, u32 or i32, contiguous.
    #[cfg(feature = "cuda")]
    pub variant: Option<(OwnVariant, Vec<Tensor>)>,
}

impl Attend {
    /// Creates the parameters of attention to every key.
    pub fn full(softmax_scale: f32) -> Self {
        let (window_size_left, window_size_right) = (None, None);
        Attend {
            softmax_scale,
            window_size_left,
            window_size_right,
            softcap: None,
            alibi_slopes: None,
            sinks: None,
            bias: None,
            mask_bits: None,
            prefix_lengths: None,
            chunk: None,
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
        if causal { Attend::causal(softmax_scale) } else { Attend::full(softmax_scale) }
    }

    /// Sets a window: keys from `left` before to `right` after the query's own position.
    pub fn window(self, left: Option<usize>, right: Option<usize>) -> Self {
        Attend { window_size_left: left, window_size_right: right, ..self }
    }

    /// Sets the softcap.
    pub fn softcap(self, softcap: f32) -> Self {
        Attend { softcap: Some(softcap), ..self }
    }

    /// Sets ALiBi slopes.
    pub fn alibi_slopes(self, slopes: &Tensor) -> Self {
        Attend { alibi_slopes: Some(slopes.clone()), ..self }
    }

    /// Sets attention sinks.
    pub fn sinks(self, sinks: &Tensor) -> Self {
        Attend { sinks: Some(sinks.clone()), ..self }
    }

    /// Sets a bias: `(batch or 1, heads or 1, queries or 1, keys)`, contiguous in its last dimension. Rows of
    /// 16-bit elements must begin at multiples of 4 bytes. For an odd number of keys, pad the rows:
    /// `bias.pad_with_zeros(3, 0, 1)?.narrow(3, 0, keys)?`. For varlen sequences and KV caches, `batch`
    /// counts sequences, and `queries` and `keys` are the longest sequence's.
    pub fn bias(self, bias: &Tensor) -> Self {
        Attend { bias: Some(bias.clone()), ..self }
    }

    /// Shows each query the keys whose bits are 1. `bits` is u8 `(batch or 1, heads or 1, queries, keys / 8
    /// rounded up)`; the batch may be left out. The least significant bit comes first. The bits belong to the
    /// last `keys` keys of each sequence; every query sees the keys before these. A tree of drafts has one
    /// key per node.
    pub fn mask_bits(self, bits: &Tensor, keys: usize) -> Self {
        Attend { mask_bits: Some((bits.clone(), keys)), ..self }
    }

    /// Shows each query the first keys of its sequence, and the keys up to its own position (prefix-LM):
    /// i32 or u32 `[batch]`.
    pub fn prefix_lengths(self, lengths: &Tensor) -> Self {
        Attend { prefix_lengths: Some(lengths.clone()), ..self }
    }

    /// Shows each query the keys of its chunk, up to its own position (chunked-local attention, Llama 4).
    pub fn chunked(self, chunk: usize) -> Self {
        Attend { chunk: Some(chunk), ..self }
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
        let extras = [("alibi_slopes", &self.alibi_slopes), ("sinks", &self.sinks), ("bias", &self.bias)];
        let extras = extras.into_iter().filter_map(|(name, extra)| Some((name, extra.as_ref()?)));
        let mut all = extras.chain(tables.map(|table| ("variant.table", table)));
        let expected = "it has no gradient here; pass a detached tensor: `tensor.detach()`";
        match all.find(|(_, extra)| extra.track_op()) {
            Some((name, _)) => Err(invalid(name, "a tensor with a gradient", expected)),
            None => Ok(()),
        }
    }

    /// Returns the name of an extra that has one value per query or key of a sequence.
    pub(crate) fn counts(&self) -> Option<&'static str> {
        let extras = [
            ("bias", self.bias.is_some()),
            ("mask_bits", self.mask_bits.is_some()),
            ("prefix_lengths", self.prefix_lengths.is_some()),
            ("chunk", self.chunk.is_some()),
            #[cfg(feature = "cuda")]
            ("variant", self.variant.is_some()),
        ];
        extras.into_iter().find(|(_, is_there)| *is_there).map(|(name, _)| name)
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
        let bits = self.mask_bits.as_ref().map(|(bits, keys)| Ok::<_, candle::Error>((rows(bits)?, *keys)));
        Ok(Attend {
            bias: self.bias.as_ref().map(rows).transpose()?,
            mask_bits: bits.transpose()?,
            prefix_lengths: self.prefix_lengths.as_ref().map(|lengths| of(lengths, 1)).transpose()?,
            ..self.clone()
        })
    }

    /// Returns the mask for at most this number of keys. By candle-flash-attn's rule, a window that covers
    /// all keys is no window.
    pub(crate) fn mask<M>(&self, seqlen_k: usize) -> Mask<M> {
        let side = |keys: Option<usize>| {
            keys.filter(|keys| *keys <= seqlen_k).and_then(|keys| u32::try_from(keys).ok())
        };
        if let Some(chunk) = self.chunk {
            return Mask::Chunked { chunk: u32::try_from(chunk).unwrap_or(u32::MAX) };
        }
        match (side(self.window_size_left), side(self.window_size_right)) {
            (None, None) => Mask::Full,
            (None, Some(0)) => Mask::Causal,
            (left, right) => Mask::Window { left, right },
        }
    }

    /// Returns the softcap; 0 is off. By candle-flash-attn's rule, a negative softcap is off too.
    pub(crate) fn cap(&self) -> f32 {
        self.softcap.map_or(0.0, |cap| if cap <= 0.0 { 0.0 } else { cap })
    }
}
