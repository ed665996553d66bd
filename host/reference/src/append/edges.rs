//! The problems that each append kernel must solve.
use ferroflash::DType;
use ferroflash::spec::AppendInfo;

/// Memory layout of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// Pages `[page][heads][head_dim]`.
    Nhd,
    /// Pages `[heads][page][head_dim]`.
    Hnd,
    /// Keys and values lie in one buffer.
    Interleaved {
        /// Whether the layout of a page is `[heads][page][head_dim]` instead of `[page][heads][head_dim]`.
        hnd: bool,
    },
}
use Lies::{Hnd, Interleaved, Nhd};

/// The source of the scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scales {
    /// No scales.
    One,
    /// One scale for all keys, and one for all values.
    Values(f32, f32),
    /// One scale per head, in device memory.
    Heads,
}

/// An append problem. The seed draws the elements and the slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendCase {
    /// Element types of tokens and cache.
    pub dtypes: [DType; 2],
    /// Memory layout of the cache.
    pub lies: Lies,
    /// Heads of a token.
    pub heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Number of pages and keys per page.
    pub pages: [usize; 2],
    /// Number of tokens, and number of rows after the last token.
    pub tokens: [usize; 2],
    /// Whether slots are i64.
    pub wide: bool,
    /// The source of the scales.
    pub scales: Scales,
    /// Seed of the elements and slots.
    pub seed: u64,
}

impl std::fmt::Display for AppendCase {
    /// Prints, for example, `40 tokens f16 to e4m3, 2 heads of 64, 5 pages of 16 Nhd, slots i64, scales One,
    /// seed 3`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let AppendCase { heads, head_dim, lies, scales, seed, .. } = self;
        let ([from, to], [pages, page]) = (self.dtypes.map(DType::name), self.pages);
        let slots = if self.wide { "i64" } else { "i32" };
        write!(
            f,
            "{} tokens {from} to {to}, {heads} heads of {head_dim}, {pages} pages of {page}",
            self.tokens[0]
        )?;
        write!(f, " {lies:?}, slots {slots}, scales {scales:?}, seed {seed}")
    }
}

/// A case with two heads of 64 columns, and 40 tokens for 5 pages of 16.
const PLAIN: AppendCase = AppendCase {
    dtypes: [DType::F16; 2],
    lies: Nhd,
    heads: 2,
    head_dim: 64,
    pages: [5, 16],
    tokens: [40, 3],
    wide: true,
    scales: Scales::One,
    seed: 1,
};
/// Cases with every layout, i32 and i64 slots, pages of one row and of many rows, and rows of one chunk and
/// of many chunks.
const COPIES: &[AppendCase] = &[
    PLAIN,
    AppendCase { lies: Hnd, wide: false, ..PLAIN },
    AppendCase { lies: Interleaved { hnd: false }, pages: [7, 3], tokens: [21, 0], ..PLAIN },
    AppendCase { lies: Interleaved { hnd: true }, pages: [40, 1], head_dim: 96, ..PLAIN },
    AppendCase { heads: 1, head_dim: 8, pages: [1, 64], tokens: [1, 0], ..PLAIN },
    AppendCase { heads: 5, head_dim: 512, pages: [2, 8], tokens: [9, 1], wide: false, ..PLAIN },
    AppendCase { lies: Hnd, head_dim: 40, heads: 3, ..PLAIN },
];
/// Cases with scales of each kind, and with scales that round every element to 0 or to the largest number.
const ROUNDED: &[AppendCase] = &[
    AppendCase { scales: Scales::Values(0.75, 3.0), ..PLAIN },
    AppendCase { lies: Hnd, scales: Scales::Heads, wide: false, heads: 3, head_dim: 48, ..PLAIN },
    AppendCase { lies: Interleaved { hnd: false }, head_dim: 16, ..PLAIN },
    AppendCase { lies: Interleaved { hnd: true }, scales: Scales::Values(0.5, 1.0), ..PLAIN },
    AppendCase { scales: Scales::Values(1e-6, 1e6), ..PLAIN },
    AppendCase { tokens: [100, 0], pages: [8, 16], ..PLAIN },
];

/// Returns problems that hit a kernel's edges: every layout, every kind of slot and scale, invalid slots,
/// tokens without a slot.
pub fn append_edges(kernel: &AppendInfo, seed: u64) -> Vec<AppendCase> {
    let (cases, types) = match kernel.rounds {
        None => (COPIES, vec![[DType::F16; 2], [DType::Bf16; 2]]),
        Some(types) => (ROUNDED, vec![types]),
    };
    let of = |dtypes| cases.iter().zip(seed..).map(move |(case, seed)| AppendCase { dtypes, seed, ..*case });
    types.into_iter().flat_map(of).collect()
}
