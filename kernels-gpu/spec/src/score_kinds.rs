//! The kinds of score modifications, as values. A kernel has them in addition to its mask.
use crate::DType;
use core::fmt;

/// The score modifications of a kernel, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScoreKinds {
    /// An attention sink per query head: [`crate::Sink`].
    pub sink: bool,
    /// ALiBi slopes under a causal mask: [`crate::CausalAlibi`]. The value is false for kernels with the mask
    /// [`crate::Local`], which take slopes anyway.
    pub alibi: bool,
    /// The dtype of an additive bias, if there is one: [`crate::Bias`].
    pub bias: Option<DType>,
    /// Whether the kernel keeps and writes the largest score of each row: [`crate::Maxima`]. Scores stay as
    /// they are.
    pub maxima: bool,
    /// Scores that a user of this crate defines. No line of the table has such scores.
    pub own: bool,
}

impl ScoreKinds {
    /// No modification: scores stay scaled products.
    pub const NONE: Self = ScoreKinds { sink: false, alibi: false, bias: None, maxima: false, own: false };
    /// A sink only.
    pub const SINK: Self = ScoreKinds { sink: true, ..Self::NONE };
    /// ALiBi slopes only.
    pub const ALIBI: Self = ScoreKinds { alibi: true, ..Self::NONE };
    /// The largest scores only.
    pub const MAXIMA: Self = ScoreKinds { maxima: true, ..Self::NONE };
    /// A modification that a user of this crate defines.
    pub const OWN: Self = ScoreKinds { own: true, ..Self::NONE };

    /// A bias of this dtype.
    pub const fn bias(dtype: DType) -> Self {
        ScoreKinds { bias: Some(dtype), ..Self::NONE }
    }

    /// The modifications of `self` and `other` together. Two biases count as a user's own scores.
    pub const fn and(self, other: Self) -> Self {
        let bias = match (self.bias, other.bias) {
            (None, bias) | (bias, None) => bias,
            (Some(_), Some(_)) => None,
        };
        let two = self.bias.is_some() && other.bias.is_some();
        ScoreKinds {
            sink: self.sink || other.sink,
            alibi: self.alibi || other.alibi,
            bias,
            maxima: self.maxima || other.maxima,
            own: self.own || other.own || two,
        }
    }

    /// The part of a symbol that names these modifications, for a Q of dtype `dtype`. The part contains
    /// `_sink`, `_alibi`, `_bias` (a bias of Q's dtype) or `_bias_f32`, and `_maxima`. It is
    /// empty for [`ScoreKinds::NONE`].
    pub fn name(self, dtype: DType) -> impl fmt::Display {
        ScoreName(self, dtype)
    }
}

/// The result of [`ScoreKinds::name`].
struct ScoreName(ScoreKinds, DType);

impl fmt::Display for ScoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScoreName(kinds, dtype) = *self;
        if kinds.sink {
            f.write_str("_sink")?;
        }
        if kinds.alibi {
            f.write_str("_alibi")?;
        }
        match kinds.bias {
            Some(bias) if bias == dtype => f.write_str("_bias")?,
            Some(bias) => write!(f, "_bias_{}", bias.name())?,
            None => {}
        }
        if kinds.maxima {
            f.write_str("_maxima")?;
        }
        if kinds.own { f.write_str("_own") } else { Ok(()) }
    }
}
