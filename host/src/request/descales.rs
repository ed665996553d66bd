//! The scales of tensors of e4m3.
use super::{AttentionRequest, KvScale, Memory};

/// The scales of Q, K and V of e4m3, FlashAttention-3's `q_descale`, `k_descale` and `v_descale`: each number
/// is the stored number times its scale. Scales in device memory are `[batch, key heads]`: those of Q, too,
/// belong to key heads. They are 0 or more. Kernels do not check them: with a negative scale of Q or K, O is
/// wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Descales<M = u64> {
    /// The scales of Q.
    pub q: KvScale<M>,
    /// The scales of K.
    pub k: KvScale<M>,
    /// The scales of V.
    pub v: KvScale<M>,
}

impl<M> Descales<M> {
    /// Scales of 1.
    pub const ONE: Self = Descales { q: KvScale::One, k: KvScale::One, v: KvScale::One };

    /// Creates scales of Q, K and V.
    pub const fn new(q: KvScale<M>, k: KvScale<M>, v: KvScale<M>) -> Self {
        Descales { q, k, v }
    }
}

impl Descales {
    /// Returns the scales of Q, K and V.
    pub(crate) const fn all(&self) -> [&KvScale; 3] {
        [&self.q, &self.k, &self.v]
    }
}

impl<R: Memory, W> AttentionRequest<'_, R, W> {
    /// Sets the scales of Q, K and V of e4m3 in tensors, with O of f16 or bf16 (FlashAttention-3's FP8).
    /// Products of such tensors have [`Precision::Fp8`](spec::Precision::Fp8), whether the request says so or
    /// not.
    /// docs/limits.md, "Tensors of e4m3", lists the dtypes, scales and shapes.
    ///
    /// ```
    /// use ferroflash::request::{AttentionRequest, Descales, KvScale, Scratch, TensorView};
    /// use ferroflash::{Capabilities, DType, plan};
    /// # let [q, k, v, o, scales] = [1, 2, 3, 4, 5].map(|n| n << 40);
    /// let view = |address, dtype| TensorView::bshd(address, 4096 * 16 * 128, dtype, [1, 4096, 16, 128]);
    /// let [q, k, v] = [q, k, v].map(|address| view(address, DType::E4m3));
    /// let of_keys = KvScale::Device { address: scales, elements: 16, strides: [16, 1] };
    /// let request = AttentionRequest::dense(q, k, v, view(o, DType::Bf16))
    ///     .descales(Descales::new(KvScale::Value(0.5), of_keys, KvScale::One))
    ///     .scratch(Scratch::Fastest);
    /// let h200 = Capabilities::profile("h200").expect("a known card"); // yours: `Attention::capabilities`
    /// assert_eq!(plan(&request, h200).expect("a plan").scratch_bytes().workspace, 4096 * 16 * 128);
    /// ```
    pub fn descales(mut self, descales: Descales<R>) -> Self {
        self.descales = descales;
        self
    }
}
