//! The options of an attention request that name no memory, and their setters.
use super::{Alignment, AttentionRequest, Invariance, Memory, Precision, Scratch, Splits};

/// Declares each option once: its setter, and its place in [`Options`].
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        /// The options that a request of other memory keeps.
        #[derive(Clone, Copy)]
        pub(crate) struct Options {
            $($name: $type,)*
        }

        impl<R: Memory, W> AttentionRequest<'_, R, W> {
            $($(#[$doc])*
            pub const fn $name(mut self, $name: $type) -> Self {
                self.$name = $name;
                self
            })*

            /// Returns the options.
            pub(crate) const fn options(&self) -> Options {
                Options { $($name: self.$name,)* }
            }

            /// Sets all options.
            pub(crate) const fn with_options(mut self, options: Options) -> Self {
                $(self.$name = options.$name;)*
                self
            }
        }
    };
}
options! {
    /// Sets how queries align with keys if there are more or fewer queries than keys.
    alignment: Alignment;
    /// Sets the scratch memory of the launch, or plans the fastest kernel with all the scratch memory that
    /// this kernel needs ([`Scratch::Fastest`]).
    scratch: Scratch;
    /// Sets the number of splits per sequence on a KV cache.
    splits: Splits;
    /// Sets what the bits of a sequence's result may depend on (batch invariance).
    invariance: Invariance;
    /// Sets the precision of the products. A lower precision than that of the inputs is less accurate
    /// (docs/accuracy.md), and faster only where the products take most of the time (docs/limits.md). Its
    /// launches first quantise tensors, or the values of an int8 KV cache, to a workspace.
    ///
    /// ```
    /// use ferroflash::request::{AttentionRequest, Precision, Scratch, TensorView};
    /// use ferroflash::{Capabilities, DType, plan};
    /// # let [q, k, v, o] = [1, 2, 3, 4].map(|n| n << 40);
    /// let view = |address| TensorView::bshd(address, 4096 * 32 * 128, DType::F16, [1, 4096, 32, 128]);
    /// let request = AttentionRequest::dense(view(q), view(k), view(v), view(o)).scratch(Scratch::Fastest);
    /// let l4 = Capabilities::profile("l4").expect("a known card"); // yours: `Attention::capabilities`
    /// let plan = plan(&request.precision(Precision::Int8Fp8), l4).expect("a plan");
    /// assert_eq!(plan.scratch_bytes().workspace, 32 * (64 * 16656 + 128 * 4));
    /// ```
    precision: Precision;
}
