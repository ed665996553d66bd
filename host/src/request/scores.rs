//! What happens to scores: which of them a query sees ([`Mask`], [`Alignment`]), and what they become before the
//! softmax ([`Scores`]).

/// Which keys a query sees.
///
/// By default the last query is aligned with the last key (bottom-right, FlashAttention's rule): query `i`
/// stands at key `i + seqlen_k - seqlen_q`. A row that sees no key gives 0, and `-inf` as its log-sum-exp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mask {
    /// All keys.
    #[default]
    Full,
    /// Keys up to the query's own position.
    Causal,
    /// Keys from `left` before the query's position to `right` behind it, both inclusive; `None` is
    /// unbounded. `Window { left: None, right: Some(0) }` is causal.
    Window {
        /// Keys before the query's position.
        left: Option<u32>,
        /// Keys behind the query's position.
        right: Option<u32>,
    },
}

impl Mask {
    /// Keys that are seen before a query's position and behind it; `None` is unbounded.
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

/// Where queries stand among keys where their numbers differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Alignment {
    /// The last query at the last key (FlashAttention).
    #[default]
    BottomRight,
    /// The first query at the first key (PyTorch's `is_causal`).
    TopLeft,
}

/// What scores become before the softmax: `softcap * tanh(scale * q k^T / softcap) - alibi`, and a logit per
/// query head that belongs to no key. The default is a scale of `1 / sqrt(head_dim)` and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Scores {
    /// Factor of the scores, above 0; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// Scores become `softcap * tanh(score / softcap)`; `None` leaves them alone.
    pub softcap: Option<f32>,
    /// Scores fall with the distance of key and query, before the mask.
    pub alibi: Option<AlibiSlopes>,
    /// A logit per query head that belongs to no key (attention sinks).
    pub sinks: Option<Sinks>,
}

/// Setters of [`Scores`] and of requests, which have some: each is named as its field.
macro_rules! score_setters {
    ($($scores:ident)?) => {
        /// Sets the factor of the scores, above 0. The default is `1 / sqrt(head_dim)`.
        #[must_use]
        pub const fn scale(mut self, scale: f32) -> Self {
            self.$($scores.)?scale = Some(scale);
            self
        }

        /// Scores become `softcap * tanh(score / softcap)`. 0 turns it off, as in FlashAttention.
        #[must_use]
        pub const fn softcap(mut self, softcap: f32) -> Self {
            self.$($scores.)?softcap = if softcap == 0.0 { None } else { Some(softcap) };
            self
        }

        /// Lets scores fall with the distance of key and query, before the mask.
        #[must_use]
        pub const fn alibi(mut self, alibi: AlibiSlopes) -> Self {
            self.$($scores.)?alibi = Some(alibi);
            self
        }

        /// Adds a logit per query head that belongs to no key. Decode kernels alone have this: see
        /// [`Splits`](crate::request::Splits) for what they take.
        #[must_use]
        pub const fn sinks(mut self, sinks: Sinks) -> Self {
            self.$($scores.)?sinks = Some(sinks);
            self
        }
    };
}
pub(crate) use score_setters;

impl Scores {
    /// A scale of `1 / sqrt(head_dim)` and nothing else.
    pub const fn new() -> Self {
        Scores { scale: None, softcap: None, alibi: None, sinks: None }
    }

    score_setters!();
}

/// One logit per query head, f32 in device memory: `exp(logit)` is added to the sum of each row's
/// exponentials and belongs to no key (attention sinks). Not scaled, not capped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sinks {
    /// Device address. A multiple of 4.
    pub address: u64,
    /// Elements of the buffer: at least one per query head.
    pub elements: u64,
}

/// ALiBi slopes (Press, Smith and Lewis, 2022), f32 in device memory, of any sign: a scaled and capped score
/// of query `i` and key `j` becomes less by `slope * |i + seqlen_k - seqlen_q - j|`, the distance of `j` from
/// where the query [stands](crate::request::Alignment). That a slope is finite is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlibiSlopes {
    /// Device address. A multiple of 4.
    pub address: u64,
    /// Elements of the buffer from `address` on: strides may reach no further.
    pub elements: u64,
    /// Elements from one sequence, and from one query head, to the next; 0 where they share a slope.
    pub strides: [i64; 2],
}

impl AlibiSlopes {
    /// `[heads]`, contiguous, the same for every sequence.
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
