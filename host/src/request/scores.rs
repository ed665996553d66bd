//! Masks ([`Mask`], [`Alignment`]), and transformations of scores before the softmax ([`Scores`]).

/// The keys that a query sees.
///
/// By default the last query aligns with the last key (bottom-right, FlashAttention's rule): query `i` has
/// the position of key `i + seqlen_k - seqlen_q`. A row that sees no key gives O = 0 and LSE = `-inf`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mask {
    /// All keys.
    #[default]
    Full,
    /// Keys up to the query's own position.
    Causal,
    /// Keys from `left` before the query's position to `right` after it, both inclusive; `None` is unbounded.
    /// `Window { left: None, right: Some(0) }` is causal.
    Window {
        /// Keys before the query's position.
        left: Option<u32>,
        /// Keys after the query's position.
        right: Option<u32>,
    },
}

impl Mask {
    /// Numbers of visible keys before and after a query's position; `None` is unbounded.
    pub const fn sides(self) -> (Option<u32>, Option<u32>) {
        match self {
            Mask::Full => (None, None),
            Mask::Causal => (None, Some(0)),
            Mask::Window { left, right } => (left, right),
        }
    }
}

impl std::fmt::Display for Mask {
    /// `full`, `causal`, or `window 1023,0`, where -1 is unbounded.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = |side: Option<u32>| side.map_or("-1".into(), |n| n.to_string());
        match *self {
            Mask::Full => write!(f, "full"),
            Mask::Causal => write!(f, "causal"),
            Mask::Window { left, right } => write!(f, "window {},{}", side(left), side(right)),
        }
    }
}

/// How queries align with keys if their numbers differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// The last query aligns with the last key (FlashAttention).
    #[default]
    BottomRight,
    /// The first query aligns with the first key (PyTorch's `is_causal`).
    TopLeft,
}

/// Transformations of scores before the softmax: `softcap * tanh(scale * q k^T / softcap) - alibi`, and
/// attention sinks. The default is a scale of `1 / sqrt(head_dim)` and no other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Scores {
    /// Factor of the scores, above 0; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// Scores become `softcap * tanh(score / softcap)`; `None` is off.
    pub softcap: Option<f32>,
    /// ALiBi: scores fall with the distance of key and query, before the mask.
    pub alibi: Option<AlibiSlopes>,
    /// Attention sinks: one logit per query head that belongs to no key.
    pub sinks: Option<Sinks>,
}

/// Setters of [`Scores`], and of requests that contain it. Each has its field's name.
macro_rules! score_setters {
    ($($scores:ident)?) => {
        /// Sets the factor of the scores, above 0. The default is `1 / sqrt(head_dim)`.
        pub const fn scale(mut self, scale: f32) -> Self {
            self.$($scores.)?scale = Some(scale);
            self
        }

        /// Scores become `softcap * tanh(score / softcap)`. 0 turns it off, as in FlashAttention.
        pub const fn softcap(mut self, softcap: f32) -> Self {
            self.$($scores.)?softcap = if softcap == 0.0 { None } else { Some(softcap) };
            self
        }

        /// Sets ALiBi slopes: scores fall with the distance of key and query, before the mask.
        pub const fn alibi(mut self, alibi: AlibiSlopes) -> Self {
            self.$($scores.)?alibi = Some(alibi);
            self
        }

        /// Adds attention sinks, one logit per query head. Only decode kernels support sinks;
        /// [`Splits`](crate::request::Splits) lists their conditions.
        pub const fn sinks(mut self, sinks: Sinks) -> Self {
            self.$($scores.)?sinks = Some(sinks);
            self
        }
    };
}
pub(crate) use score_setters;

impl Scores {
    /// A scale of `1 / sqrt(head_dim)` and no other transformation.
    pub const fn new() -> Self {
        Scores { scale: None, softcap: None, alibi: None, sinks: None }
    }

    score_setters!();
}

/// Attention sinks: one logit per query head, f32 in device memory. `exp(logit)` joins the sum of each row's
/// exponentials and belongs to no key. It is neither scaled nor capped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sinks {
    /// Device address. A multiple of 4.
    pub address: u64,
    /// Elements of the buffer: at least one per query head.
    pub elements: u64,
}

/// ALiBi slopes (Press, Smith and Lewis, 2022), f32 in device memory, of any sign. They subtract
/// `slope * |i + seqlen_k - seqlen_q - j|` from the scaled and capped score of query `i` and key `j`: the
/// distance of `j` from the query's [position](crate::request::Alignment). FerroFlash does not check that
/// slopes are finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlibiSlopes {
    /// Device address. A multiple of 4.
    pub address: u64,
    /// Elements of the buffer from `address` on. Strides must stay within them.
    pub elements: u64,
    /// Elements from one sequence, and from one query head, to the next; 0 if they share a slope.
    pub strides: [i64; 2],
}

impl AlibiSlopes {
    /// `[heads]`, contiguous, shared by all sequences.
    pub const fn new(address: u64, elements: u64) -> Self {
        AlibiSlopes { address, elements, strides: [0, 1] }
    }

    /// Sets the strides: `[heads, 1]` is `[sequences][heads]`, contiguous.
    #[must_use]
    pub const fn strides(mut self, strides: [i64; 2]) -> Self {
        self.strides = strides;
        self
    }
}
