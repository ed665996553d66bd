//! Outputs of one f32 per row of O, which kernels write beside O. This file is their only declaration:
//! checks, fronts and the reference go through all of them.
use super::{AttentionRequest, LseView, Memory, Sinks};
use crate::AttnInfo;
use spec::{Class, Isa, Pass, Schedule};

/// Declares the outputs: which kernels write an output, and why other kernels do not accept a request for it.
macro_rules! row_outputs {
    ($($(#[doc = $doc:literal])* $name:ident: $is_of:expr, $refusal:literal;)*) => {
        /// A value for each output of one f32 per row of O.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct RowOutputs<T> {
            $($(#[doc = $doc])* pub $name: T,)*
        }

        const REFUSALS: RowOutputs<&str> = RowOutputs { $($name: $refusal),* };

        impl<T> RowOutputs<T> {
            /// [`RowOutputs::map`] of a function that may fail.
            ///
            /// # Errors
            /// Returns the first error of the function.
            pub fn try_map<U, E>(
                self,
                mut of: impl FnMut(&'static str, T) -> Result<U, E>,
            ) -> Result<RowOutputs<U>, E> {
                Ok(RowOutputs { $($name: of(stringify!($name), self.$name)?),* })
            }

            /// Returns the values with the outputs' names.
            pub fn named(self) -> impl Iterator<Item = (&'static str, T)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Returns the pairs of these values and other values.
            pub fn zip<U>(self, other: RowOutputs<U>) -> RowOutputs<(T, U)> {
                RowOutputs { $($name: (self.$name, other.$name)),* }
            }

            /// Returns references to the values.
            pub const fn as_ref(&self) -> RowOutputs<&T> {
                RowOutputs { $($name: &self.$name),* }
            }

            /// Returns mutable references to the values.
            pub const fn as_mut(&mut self) -> RowOutputs<&mut T> {
                RowOutputs { $($name: &mut self.$name),* }
            }
        }

        impl RowOutputs<()> {
            /// The number of outputs.
            pub const COUNT: usize = [$(stringify!($name)),*].len();
        }

        impl RowOutputs<bool> {
            /// No output.
            pub const NONE: Self = RowOutputs { $($name: false),* };
            /// The LSE alone.
            pub const LSE: Self = RowOutputs { lse: true, ..Self::NONE };

            /// Returns which outputs a kernel writes.
            pub fn of(kernel: &AttnInfo) -> Self {
                let is = |is_of: fn(&AttnInfo) -> bool| is_of(kernel);
                RowOutputs { $($name: is($is_of)),* }
            }
        }

        impl<R: Memory, W> AttentionRequest<'_, R, W> {
            $($(#[doc = $doc])*
            ///
            /// This function sets the output's memory.
            pub fn $name(mut self, $name: LseView<W>) -> Self {
                self.$name = Some($name);
                self
            })*

            /// Returns the outputs of rows.
            pub const fn rows(&self) -> RowOutputs<Option<&LseView<W>>> {
                RowOutputs { $($name: self.$name.as_ref()),* }
            }

            /// Returns the outputs of rows, and leaves none.
            pub(crate) const fn take_rows(&mut self) -> RowOutputs<Option<LseView<W>>> {
                RowOutputs { $($name: self.$name.take()),* }
            }

            /// Returns the request with these outputs of rows.
            pub fn with_rows(mut self, rows: RowOutputs<Option<LseView<W>>>) -> Self {
                $(self.$name = rows.$name;)*
                self
            }
        }
    };
}
row_outputs! {
    /// LSE (log-sum-exp) of each row, with sinks; `-inf` for a row that sees no key.
    lse: |_| true, "";
    /// The largest score of each row, as the softmax sees it: scaled, after softcap, slopes and bias, before
    /// sinks; `-inf` for a row that sees no key. Its strides are those of the LSE. Hopper's kernels with
    /// `maxima` in their names write it, for dense and varlen tensors, and portable kernels for dense
    /// tensors. These rescale O with every new maximum then, which takes up to 15 % more time. On other keys,
    /// together with the entropy, or with [`Invariance::Batch`](crate::request::Invariance), a kernel of
    /// statistics computes the scores again.
    max_logits: |kernel| {
        let is_dense = kernel.class() == Class::Dense && kernel.isa == Isa::Sm80 && !kernel.splits;
        let is_portable = is_dense && kernel.schedule != Schedule::Specialised;
        is_portable || kernel.scores.maxima || kernel.pass == Pass::Statistics
    },
    "max_logits: only kernels with `maxima` in their names, and portable kernels for dense tensors, without \
     split-KV, write it; leave it out, or ask for the entropy too: a kernel of statistics then writes both";
    /// The entropy of each row's probabilities over keys, in nats, without the weight of sinks; 0 for a row
    /// that sees no key. Its strides are those of the LSE. A kernel of statistics, which follows the kernels
    /// of the attention, computes the scores again.
    entropy: |kernel| kernel.pass == Pass::Statistics,
    "entropy: the plan has no kernel of statistics; make a plan for a request with it";
}

impl<R: Memory, W> AttentionRequest<'_, R, W> {
    /// Sets the memory of the largest score of each query head: the largest `max_logits` of all rows of the
    /// batch, and `-inf` for a head whose rows see no key. Without `max_logits`, a launch needs a workspace.
    pub fn max_logits_head(mut self, heads: Sinks<W>) -> Self {
        self.max_logits_head = Some(heads);
        self
    }
}

impl<T> RowOutputs<T> {
    /// Returns the results of a function of each output's name and value.
    pub fn map<U>(self, mut of: impl FnMut(&'static str, T) -> U) -> RowOutputs<U> {
        let Ok(all) = self.try_map(|name, value| Ok::<_, std::convert::Infallible>(of(name, value)));
        all
    }
}

/// An LSE without other outputs.
impl<T> From<Option<T>> for RowOutputs<Option<T>> {
    fn from(lse: Option<T>) -> Self {
        RowOutputs { lse, ..RowOutputs::default() }
    }
}

impl RowOutputs<bool> {
    /// Returns the outputs that a request wants.
    pub(crate) fn wanted<R: Memory, W>(r: &AttentionRequest<'_, R, W>) -> Self {
        r.rows().map(|_, view| view.is_some())
    }

    /// Checks that a kernel writes these outputs.
    ///
    /// # Errors
    /// Returns the reason why the kernel does not accept the request.
    pub(crate) fn are_of(self, kernel: &AttnInfo) -> Result<(), &'static str> {
        let mut all = self.zip(RowOutputs::of(kernel)).zip(REFUSALS).named();
        let missing = all.find(|(_, ((wanted, written), _))| *wanted && !written);
        missing.map_or(Ok(()), |(_, (_, refusal))| Err(refusal))
    }
}
