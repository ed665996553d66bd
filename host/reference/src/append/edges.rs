//! The problems that each append kernel must solve.
use ferroflash::DType;
use ferroflash::request::RotaryStyle;
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
    /// Pages `[page][heads][head_dim]` of a latent cache: the first columns of a row, this number, are its
    /// value.
    Latent(usize),
}
use Lies::{Hnd, Interleaved, Latent, Nhd};

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

/// The rotation of an append case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryCase {
    /// The columns that rotate together.
    pub style: RotaryStyle,
    /// The first column that rotates, and the number of columns that rotate.
    pub columns: [usize; 2],
    /// Rows of the table of angles.
    pub rows: usize,
    /// Whether the table is f32. Otherwise it has the tokens' dtype.
    pub wide: bool,
    /// Whether each row of one table has cosines, then sines. Otherwise there are two tables.
    pub together: bool,
    /// Whether positions are i64.
    pub wide_positions: bool,
    /// Query heads, if queries rotate too.
    pub query_heads: Option<usize>,
    /// Whether queries rotate in place.
    pub in_place: bool,
}

impl RotaryCase {
    /// Returns the dtype of the table.
    pub(super) fn dtype(&self, tokens: DType) -> DType {
        if self.wide { DType::F32 } else { tokens }
    }
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
    /// The rotation, if keys rotate.
    pub rotary: Option<RotaryCase>,
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
        if let Some(rotary) = &self.rotary {
            write!(f, " {rotary:?}")?;
        }
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
    rotary: None,
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
    AppendCase { lies: Latent(64), heads: 1, head_dim: 80, ..PLAIN },
];
/// Cases with scales of each kind, and with scales that round every element to 0 or to the largest number.
const ROUNDED: &[AppendCase] = &[
    AppendCase { scales: Scales::Values(0.75, 3.0), ..PLAIN },
    AppendCase { lies: Hnd, scales: Scales::Heads, wide: false, heads: 3, head_dim: 48, ..PLAIN },
    AppendCase { lies: Interleaved { hnd: false }, head_dim: 16, ..PLAIN },
    AppendCase { lies: Interleaved { hnd: true }, scales: Scales::Values(0.5, 1.0), ..PLAIN },
    AppendCase { scales: Scales::Values(1e-6, 1e6), ..PLAIN },
    AppendCase { tokens: [100, 0], pages: [8, 16], ..PLAIN },
    AppendCase { lies: Latent(64), heads: 1, head_dim: 96, scales: Scales::Values(0.75, 1.0), ..PLAIN },
    AppendCase { lies: Latent(512), heads: 1, head_dim: 576, scales: Scales::Heads, ..PLAIN },
];

/// Cases of int8 caches, whose rows have 16 to 256 columns.
const INTEGERS: &[AppendCase] = &[
    PLAIN,
    AppendCase { lies: Hnd, wide: false, heads: 3, head_dim: 128, ..PLAIN },
    AppendCase { lies: Interleaved { hnd: false }, heads: 1, head_dim: 16, pages: [7, 3], ..PLAIN },
    AppendCase { lies: Interleaved { hnd: true }, head_dim: 256, pages: [40, 1], tokens: [21, 0], ..PLAIN },
    AppendCase { head_dim: 48, tokens: [100, 0], pages: [8, 16], ..PLAIN },
];

/// Cases of latent caches whose rows have their own scales: pages of many rows, of three and of one.
const SCALED: &[AppendCase] = &[
    IN_ROWS,
    AppendCase { wide: false, pages: [7, 3], tokens: [21, 0], ..IN_ROWS },
    AppendCase { pages: [40, 1], tokens: [5, 1], ..IN_ROWS },
    AppendCase { heads: 2, pages: [2, 8], tokens: [9, 2], ..IN_ROWS },
];
const IN_ROWS: AppendCase = AppendCase { lies: Latent(512), heads: 1, head_dim: 576, ..PLAIN };

/// A rotation of all 64 columns, with queries.
const TURN: RotaryCase = RotaryCase {
    style: RotaryStyle::Halves,
    columns: [0, 64],
    rows: 50,
    wide: true,
    together: false,
    wide_positions: true,
    query_heads: Some(6),
    in_place: false,
};
/// The rotation, in place and interleaved.
const WITHIN: RotaryCase = RotaryCase { style: RotaryStyle::Interleaved, in_place: true, ..TURN };
/// Cases with each style, kind of table, kind of positions and rotated range, with and without queries, in
/// place and not. Heads have odd and even numbers of chunks.
const ROTATED: &[AppendCase] = &[
    turned(TURN, PLAIN),
    turned(RotaryCase { together: true, in_place: true, ..TURN }, PLAIN),
    turned(RotaryCase { wide: false, query_heads: None, ..TURN }, PLAIN),
    turned(RotaryCase { wide: false, together: true, rows: 1, wide_positions: false, ..WITHIN }, PLAIN),
    turned(RotaryCase { columns: [0, 16], query_heads: Some(2), ..TURN }, PLAIN),
    turned(
        RotaryCase { columns: [8, 32], wide: false, in_place: false, ..WITHIN },
        AppendCase { heads: 3, head_dim: 48, wide: false, ..PLAIN },
    ),
    turned(
        RotaryCase { columns: [24, 16], ..WITHIN },
        AppendCase { lies: Hnd, heads: 1, head_dim: 80, ..PLAIN },
    ),
    turned(
        RotaryCase { columns: [16, 32], wide_positions: false, in_place: true, ..TURN },
        AppendCase { lies: Interleaved { hnd: true }, heads: 2, head_dim: 112, ..PLAIN },
    ),
    turned(
        RotaryCase { columns: [0, 256], query_heads: Some(1), ..TURN },
        AppendCase { lies: Interleaved { hnd: false }, heads: 1, head_dim: 256, tokens: [9, 0], ..PLAIN },
    ),
];
/// Cases that int8 caches cannot have, and e4m3 caches only with 576 columns: heads of an odd number of
/// chunks, latent caches.
const ROTATED_COPIES: &[AppendCase] = &[
    turned(RotaryCase { columns: [8, 32], query_heads: None, ..TURN }, AppendCase { head_dim: 56, ..PLAIN }),
    turned(RotaryCase { columns: [8, 16], ..WITHIN }, AppendCase { lies: Hnd, head_dim: 40, ..PLAIN }),
    turned(
        RotaryCase { columns: [512, 64], query_heads: Some(16), ..WITHIN },
        AppendCase { lies: Latent(512), heads: 1, head_dim: 576, tokens: [12, 1], ..PLAIN },
    ),
    turned(
        RotaryCase { columns: [64, 16], query_heads: Some(2), ..TURN },
        AppendCase { lies: Latent(64), heads: 1, head_dim: 80, ..PLAIN },
    ),
];

/// Cases of latent caches whose rows have their own scales: rotations of all columns without a scale and of
/// some of them.
const ROTATED_SCALED: &[AppendCase] = &[
    turned(RotaryCase { columns: [512, 64], query_heads: Some(16), ..WITHIN }, IN_ROWS),
    turned(RotaryCase { columns: [512, 64], query_heads: None, wide_positions: false, ..TURN }, IN_ROWS),
    turned(
        RotaryCase { columns: [528, 32], query_heads: Some(3), wide: false, rows: 1, ..TURN },
        AppendCase { heads: 2, pages: [7, 3], tokens: [12, 1], wide: false, ..IN_ROWS },
    ),
    turned(
        RotaryCase { columns: [512, 16], together: true, in_place: false, ..WITHIN },
        AppendCase { tokens: [9, 0], ..IN_ROWS },
    ),
    turned(RotaryCase { columns: [560, 16], ..TURN }, AppendCase { tokens: [5, 0], ..IN_ROWS }),
];

const fn turned(rotary: RotaryCase, case: AppendCase) -> AppendCase {
    AppendCase { rotary: Some(rotary), ..case }
}

/// Returns problems that hit a kernel's edges: every layout, every kind of slot and scale, invalid slots,
/// tokens without a slot.
pub fn append_edges(kernel: &AppendInfo, seed: u64) -> Vec<AppendCase> {
    let (cases, types) = match (kernel.rotates, kernel.rounds) {
        (rotates, Some(types @ [_, DType::E4m3Scaled])) => {
            (if rotates.is_some() { ROTATED_SCALED } else { SCALED }.to_vec(), vec![types])
        }
        (None, None) => (COPIES.to_vec(), vec![[DType::F16; 2], [DType::Bf16; 2]]),
        (None, Some(types)) if kernel.whole_rows() => (INTEGERS.to_vec(), vec![types]),
        (None, Some(types)) => (ROUNDED.to_vec(), vec![types]),
        (Some(dtype), None) => ([ROTATED, ROTATED_COPIES].concat(), vec![[dtype; 2]]),
        (Some(_), Some(types)) if kernel.whole_rows() => (ROTATED.to_vec(), vec![types]),
        (Some(_), Some(types)) => {
            let scales = [Scales::One, Scales::Values(0.75, 3.0), Scales::Heads].into_iter().cycle();
            let latents = ROTATED_COPIES.iter().filter(|case| case.head_dim == 576);
            let cases = ROTATED.iter().chain(latents);
            (cases.zip(scales).map(|(case, scales)| AppendCase { scales, ..*case }).collect(), vec![types])
        }
    };
    let of = |dtypes| cases.iter().zip(seed..).map(move |(case, seed)| AppendCase { dtypes, seed, ..*case });
    types.into_iter().flat_map(of).collect()
}
