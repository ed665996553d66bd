//! Packed sequences: where each begins, what attention makes of them, and the problems that their kernels
//! must solve.
use super::attention::{Inputs, Outputs};
use super::cases::{self, Case, Values, head_dims, takes_slopes};
use super::inputs::Random;
use super::masks::{at_edges, several};
use super::memory::Layout;
use super::tensor::TensorError;
use super::told::Told;
use ferroflash::kernels::{AttnInfo, MaskKind};
use ferroflash::plan::Problem;
use ferroflash::request::{Alignment, Index, Mask, VarlenKeys, VarlenQueries};
use std::ops::Range;

/// What the device is told of packed sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequences {
    /// Where each begins among the rows of Q, and where the last one ends.
    pub cu_seqlens_q: Vec<i32>,
    /// The same of K.
    pub cu_seqlens_k: Vec<i32>,
    /// Keys that exist, where these are fewer than the rows.
    pub seqused_k: Option<Vec<i32>>,
}

/// A sequence of a case: `[tiles, queries, blocks, keys, unused]` has so many tiles and queries more, so many
/// blocks and keys more, and rows of K and V behind its keys that nobody uses.
pub type Lengths = [i32; 5];

impl Sequences {
    /// Those of a case whose tiles have `[queries, keys]`.
    pub fn of(lengths: &[Lengths], [m, n]: [u32; 2]) -> Self {
        let starts = |count: &dyn Fn(&Lengths) -> i32| {
            let ends = lengths.iter().scan(0, |end, lengths| {
                *end += count(lengths);
                Some(*end)
            });
            std::iter::once(0).chain(ends).collect()
        };
        let keys = |[_, _, blocks, keys, _]: &Lengths| blocks * n as i32 + keys;
        let are_used = lengths.iter().any(|[.., unused]| *unused > 0);
        Sequences {
            cu_seqlens_q: starts(&|[tiles, queries, ..]| tiles * m as i32 + queries),
            cu_seqlens_k: starts(&|lengths| keys(lengths) + lengths[4]),
            seqused_k: are_used.then(|| lengths.iter().map(keys).collect()),
        }
    }

    /// Those that files or callers describe, of so many rows of Q and of K.
    ///
    /// # Errors
    /// [`TensorError::Sequences`] where an array is not as long as the others say, does not begin with 0,
    /// falls, or names more rows than there are.
    pub fn new(
        [cu_seqlens_q, cu_seqlens_k]: [Vec<i32>; 2],
        seqused_k: Option<Vec<i32>>,
        rows: [usize; 2],
    ) -> Result<Self, TensorError> {
        let count = cu_seqlens_q.len();
        let arrays = [("cu_seqlens_q", &cu_seqlens_q, rows[0]), ("cu_seqlens_k", &cu_seqlens_k, rows[1])];
        for (name, starts, rows) in arrays {
            let rises = starts.is_sorted() && starts.first() == Some(&0);
            if !rises || starts.len() != count || count < 2 || starts[count - 1] as usize > rows {
                let want = format!(
                    "it must have {} integers, 0 first, none below the one before or above the {rows} rows",
                    count.max(2)
                );
                return Err(TensorError::Sequences { name, got: starts.clone(), want });
            }
        }
        let all = Sequences { cu_seqlens_q, cu_seqlens_k, seqused_k };
        let starts = all.cu_seqlens_k.windows(2).map(|w| w[1] - w[0]);
        if let Some(used) = &all.seqused_k
            && (used.len() != all.count()
                || !used.iter().zip(starts).all(|(used, rows)| (0..=rows).contains(used)))
        {
            let want = format!("it must have {} integers, from 0 to each sequence's rows of k", all.count());
            return Err(TensorError::Sequences { name: "seqused_k", got: used.clone(), want });
        }
        Ok(all)
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.cu_seqlens_q.len() - 1
    }

    /// Rows of Q and O of a sequence.
    pub fn queries(&self, sequence: usize) -> Range<usize> {
        self.cu_seqlens_q[sequence] as usize..self.cu_seqlens_q[sequence + 1] as usize
    }

    /// Rows of K and V that a sequence uses.
    pub fn keys(&self, sequence: usize) -> Range<usize> {
        let (first, end) = (self.cu_seqlens_k[sequence] as usize, self.cu_seqlens_k[sequence + 1] as usize);
        let used = self.seqused_k.as_ref().map_or(end - first, |used| used[sequence] as usize);
        first..end.min(first + used)
    }

    /// Rows of Q that are some sequence's: all before this one.
    pub fn rows(&self) -> usize {
        self.cu_seqlens_q[self.count()] as usize
    }

    /// Rows of K that are some sequence's, used or not.
    fn key_rows(&self) -> usize {
        self.cu_seqlens_k[self.count()] as usize
    }

    /// The problem that these are, of the type, heads and scores of `one`, in so many rows of Q and of K.
    #[must_use]
    pub fn problem(&self, one: Problem, rows: [usize; 2]) -> Problem {
        let longest =
            |starts: &[i32]| starts.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0).max(1) as usize;
        one.batch(self.count())
            .seqlen_q(longest(&self.cu_seqlens_q))
            .seqlen_k(longest(&self.cu_seqlens_k))
            .varlen(Some(rows))
    }

    /// What the device is told: these, or others in the same rows.
    pub(super) fn told(&self, told: Told) -> Self {
        let mut all = self.clone();
        let fewer = |starts: &mut Vec<i32>, random: &mut Random| {
            let lengths: Vec<i32> = starts.windows(2).map(|w| w[1] - w[0]).collect();
            for (b, length) in lengths.into_iter().enumerate() {
                starts[b + 1] = starts[b] + (random.bits() % (length as u64 + 1)) as i32;
            }
        };
        match told {
            Told::Filled => {}
            Told::Fewer(seed) => {
                let random = &mut Random::new(seed);
                fewer(&mut all.cu_seqlens_q, random);
                match &mut all.seqused_k {
                    Some(used) => {
                        used.iter_mut().for_each(|keys| *keys = (random.bits() % (*keys as u64 + 1)) as i32);
                    }
                    None => fewer(&mut all.cu_seqlens_k, random),
                }
            }
            // Starts that overlap make blocks write the same rows, which keys that are used do not.
            Told::Garbage(seed) => scatter(all.seqused_k.iter_mut(), self, seed),
            Told::Lost(seed) => {
                let starts = [&mut all.cu_seqlens_q, &mut all.cu_seqlens_k].into_iter();
                scatter(starts.chain(&mut all.seqused_k), self, seed);
            }
        }
        all
    }

    /// Their arrays of integers, by name.
    pub(super) fn arrays(&self) -> impl Iterator<Item = (&'static str, &Vec<i32>)> {
        let starts = [("cu_seqlens_q", &self.cu_seqlens_q), ("cu_seqlens_k", &self.cu_seqlens_k)];
        starts.into_iter().chain(self.seqused_k.as_ref().map(|used| ("seqused_k", used)))
    }

    /// How a launch is told of them, with the arrays at these addresses.
    pub(super) fn varlen(&self, p: &Problem, addresses: &[u64]) -> (VarlenQueries, VarlenKeys) {
        let mut arrays = addresses.iter().zip(self.arrays());
        let mut next = || arrays.next().map(|(address, (_, array))| Index::new(*address, array.len() as u64));
        let nothing = Index::new(0, 0);
        let [starts_q, starts_k] = [(); 2].map(|()| next().unwrap_or(nothing));
        let keys = VarlenKeys::new(starts_k, p.seqlen_k);
        let queries = VarlenQueries::new(self.count(), starts_q, p.seqlen_q);
        (queries, next().map_or(keys, |used| keys.seqused_k(used)))
    }
}

/// Puts integers that make no sense among right ones.
fn scatter<'a>(arrays: impl Iterator<Item = &'a mut Vec<i32>>, of: &Sequences, seed: u64) {
    let (mut random, rows, keys) = (Random::new(seed), of.rows() as i32, of.key_rows() as i32);
    for x in arrays.flatten() {
        let garbage = [*x, i32::MAX, -1, *x, i32::MIN, 0, rows + 9, keys + 9, *x + 1];
        *x = garbage[(random.bits() % 9) as usize];
    }
}

/// Attention in each sequence by itself. Rows of Q that are none's are left out.
pub(super) fn each(
    inputs: &Inputs,
    sequences: &Sequences,
    attention: impl Fn(&Inputs) -> Outputs,
) -> Outputs {
    let [_, _, heads, head_dim] = inputs.q().shape();
    let rows = sequences.rows();
    let mut all = Outputs {
        shape: [1, rows, heads, head_dim],
        out: vec![0.0; rows * heads * head_dim],
        lse: vec![0.0; heads * rows],
    };
    for sequence in 0..sequences.count() {
        let (queries, keys) = (sequences.queries(sequence), sequences.keys(sequence));
        let one = attention(&inputs.sequence(sequence, queries.clone(), keys));
        let row = heads * head_dim;
        all.out[queries.start * row..queries.end * row].copy_from_slice(&one.out);
        for head in 0..heads {
            let own = &one.lse[head * queries.len()..][..queries.len()];
            all.lse[head * rows..][queries.clone()].copy_from_slice(own);
        }
    }
    all
}

/// More than a tile, keys without queries, queries without keys, keys that are not used, exact tiles, nothing
/// at all.
const RAGGED: &[Lengths] =
    &[[1, 1, 2, 1, 0], [0, 0, 1, 0, 0], [0, 3, 0, 0, 0], [0, 5, 1, -1, 2], [1, 0, 3, 0, 0], [0, 0, 0, 0, 0]];
/// Few queries, and fewer keys than queries.
const SHORT: &[Lengths] = &[[0, 1, 0, 1, 0], [0, 2, 1, 1, 0], [0, 7, 0, 3, 9], [0, 1, 2, 0, 0]];
/// Equally long, but for one.
const EVEN: &[Lengths] = &[[1, 0, 1, 3, 0], [1, 0, 1, 3, 0], [0, 9, 1, 3, 0]];
/// One long among many short ones: more than a warp looks at at once.
const MANY: &[Lengths] = &{
    let mut all = [[0, 2, 0, 3, 0]; 41];
    all[29] = [1, 3, 2, 5, 0];
    all[7] = [0, 0, 0, 4, 0];
    all[33] = [0, 1, 0, 0, 0];
    all
};

/// A case of `lengths`, with three rows of each tensor that are nobody's.
fn case(entry: &AttnInfo, lengths: &'static [Lengths], one: Problem, layout: Layout, seed: u64) -> Case {
    let tile = [entry.tile_m, entry.tile_n];
    let sequences = Sequences::of(lengths, tile);
    let problem = sequences.problem(one, [sequences.rows() + 3, sequences.key_rows() + 3]);
    Case { problem, layout, seed, values: Values::Packed { lengths, tile, told: &[Told::Filled] } }
}

/// The same with several launches of one plan.
fn told(case: Case, told: &'static [Told]) -> Case {
    match case.values {
        Values::Packed { lengths, tile, .. } => {
            Case { values: Values::Packed { lengths, tile, told }, ..case }
        }
        Values::Normal | Values::Peaks { .. } => case,
    }
}

/// Other lengths, and keys in use that make no sense.
const OTHERS: &[Told] = &[Told::Filled, Told::Fewer(1), Told::Garbage(2), Told::Filled];

/// Starts that make no sense.
pub(super) fn astray(entry: &AttnInfo, seed: u64) -> Case {
    told(soak(entry, seed), &[Told::Filled, Told::Lost(1), Told::Lost(2), Told::Lost(3), Told::Filled])
}

/// [`super::edges`] of a packed kernel.
pub(super) fn edges(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    let [held, padded] = head_dims(entry.head_dim as usize);
    // The head dims between entries' own: 40, 72, 80.
    let other = if entry.head_dim == 96 { 72 } else { padded };
    let one = |heads_q, heads_k, head_dim| {
        Problem::new(entry.dtype, 1, 0, 0, head_dim).heads_q(heads_q).heads_k(heads_k)
    };
    let shapes = [
        (RAGGED, one(2, 1, held), Layout::Bshd),
        (SHORT, one(4, 2, padded), Layout::Bhsd),
        (MANY, one(1, 1, held), Layout::Bshd),
        (EVEN, one(2, 2, other), Layout::Bhsd),
    ];
    let n = entry.tile_n;
    let window = |left, right| Mask::Window { left: Some(left), right: Some(right) };
    let masks = match entry.mask {
        MaskKind::Full => [(Mask::Full, None); 4],
        MaskKind::Causal => [(Mask::Causal, None); 4],
        MaskKind::Local => [
            (window(n - 1, n), None),
            (window(5, 3), Some(30.0)),
            (window(2, 1), None),
            (Mask::Causal, Some(5.0)),
        ],
        other => {
            let tile = [entry.tile_m, entry.tile_n].map(|tile| tile as usize);
            let masks = at_edges(other, tile);
            std::array::from_fn(|turn| (masks[turn % masks.len()].0, None))
        }
    };
    let cases =
        shapes.into_iter().zip(masks).enumerate().map(|(turn, ((lengths, one, layout), (mask, softcap)))| {
            let alignment = if turn == 3 { Alignment::TopLeft } else { Alignment::BottomRight };
            let one = one.mask(mask).alignment(alignment).softcap(softcap.unwrap_or_default());
            let case = case(entry, lengths, one, layout, seed.wrapping_add(turn as u64));
            if turn == 1 { told(case, OTHERS) } else { case }
        });
    let mut cases: Vec<_> = cases.collect();
    if entry.mask == MaskKind::Local && takes_slopes(entry) {
        let slopes =
            [(RAGGED, Mask::Causal, Alignment::BottomRight), (SHORT, Mask::Full, Alignment::TopLeft)];
        cases.extend(slopes.map(|(lengths, mask, alignment)| {
            let one = one(2, 1, held).mask(mask).alignment(alignment).alibi(true);
            case(entry, lengths, one, Layout::Bshd, seed.wrapping_add(lengths.len() as u64))
        }));
    }
    if entry.has_maps() {
        // No row is nobody's: dealt out to as many blocks as the card holds, several tiles each.
        let Case { problem, .. } = cases[0];
        let one = one(48, 48, held).mask(problem.mask).alignment(problem.alignment);
        let mut equal = case(entry, EQUAL, one, Layout::Bshd, seed.wrapping_add(9));
        equal.problem.varlen = equal.problem.varlen.map(|rows| rows.map(|rows| rows - 3));
        cases.push(equal);
    }
    cases::of(entry, cases)
}

/// As long as each other, of two tiles.
const EQUAL: &[Lengths] = &[[1, 3, 1, 1, 0]; 3];

/// Sequences of several tiles and blocks for a GPU.
const LONG: &[Lengths] = &[
    [4, 77, 16, 5, 0],
    [0, 1, 30, 1, 0],
    [2, 0, 3, 11, 50],
    [0, 0, 2, 0, 0],
    [9, 3, 18, 6, 0],
    [0, 30, 0, 0, 0],
    [1, -1, 9, -1, 0],
    [3, 40, 1, 0, 0],
];

/// [`super::grid`] of a packed kernel: its edges, and longer sequences with every mask, grouping and layout.
pub(super) fn grid(entry: &AttnInfo, seed: u64) -> Vec<Case> {
    let mut cases = edges(entry, seed);
    for (mask, alignment, softcap, alibi) in several(entry.mask) {
        if alibi && !takes_slopes(entry) {
            continue;
        }
        for group in [1, 4, 8] {
            let (turn, heads_k) = (cases.len(), if group == 8 { 1 } else { 2 });
            let head_dim = head_dims(entry.head_dim as usize)[turn / 2 % 2];
            let one = Problem::new(entry.dtype, 1, 0, 0, head_dim).heads_q(heads_k * group).heads_k(heads_k);
            let one = one.mask(mask).alignment(alignment).softcap(softcap.unwrap_or_default()).alibi(alibi);
            let layout = [Layout::Bshd, Layout::Bhsd][turn % 2];
            let case = case(entry, LONG, one, layout, seed.wrapping_add(turn as u64));
            cases.push(if group == 4 { told(case, OTHERS) } else { case });
        }
    }
    cases::of(entry, cases)
}

/// [`super::soak`] of a packed kernel.
pub(super) fn soak(entry: &AttnInfo, seed: u64) -> Case {
    let (mask, alignment, softcap, _) = several(entry.mask)[0];
    let one = Problem::new(entry.dtype, 1, 0, 2, entry.head_dim as usize);
    let one = one.mask(mask).alignment(alignment).softcap(softcap.unwrap_or_default());
    cases::of(entry, vec![case(entry, RAGGED, one, Layout::Bshd, seed)]).remove(0)
}
