//! The sequences of a varlen batch, and the integers in device memory.
use super::device_lengths::DeviceLengths;
use super::inputs::Random;
use super::tensor::TensorError;
use ferroflash::plan::Problem;
use std::ops::Range;

/// The sequences of a varlen batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequences {
    /// First row of Q of each sequence, then the end of the last sequence.
    pub cu_seqlens_q: Vec<i32>,
    /// First row of K of each sequence, then the end of the last sequence.
    pub cu_seqlens_k: Vec<i32>,
    /// Number of used keys per sequence, or `None` if every row of K is used.
    pub seqused_k: Option<Vec<i32>>,
}

impl Sequences {
    /// Creates the sequences of a file or a caller. `rows` are the numbers of rows of Q and of K.
    ///
    /// # Errors
    /// Returns [`TensorError::Sequences`] if an array has a wrong length, does not begin with 0, decreases,
    /// or exceeds `rows`.
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
                    "it must have {} integers, 0 first, never decreasing, none above the {rows} rows",
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
            let want =
                format!("it must have {} integers, each from 0 to the sequence's rows of k", all.count());
            return Err(TensorError::Sequences { name: "seqused_k", got: used.clone(), want });
        }
        Ok(all)
    }

    /// Divides each sequence into `used` queries and padding, a sequence without keys.
    ///
    /// # Errors
    /// Returns [`TensorError::Sequences`] if `used` is not from 0 to the rows of each sequence.
    pub fn divided(&self, used: &[i32]) -> Result<Self, TensorError> {
        let rows = self.cu_seqlens_q.windows(2).map(|w| w[1] - w[0]);
        if used.len() != self.count() || !used.iter().zip(rows).all(|(used, rows)| (0..=rows).contains(used))
        {
            let want =
                format!("it must have {} integers, each from 0 to the sequence's rows of q", self.count());
            return Err(TensorError::Sequences { name: "seqused_q", got: used.to_vec(), want });
        }
        let ends = used.iter().zip(&self.cu_seqlens_q).zip(&self.cu_seqlens_q[1..]);
        let cu_seqlens_q = ends.flat_map(|((used, start), end)| [start + used, *end]);
        let twice = |all: &[i32]| all.iter().flat_map(|n| [*n, *n]).collect::<Vec<_>>();
        let starts_k = twice(&self.cu_seqlens_k);
        Ok(Sequences {
            cu_seqlens_q: std::iter::once(0).chain(cu_seqlens_q).collect(),
            cu_seqlens_k: starts_k[1..].to_vec(),
            seqused_k: self.seqused_k.as_ref().map(|used| used.iter().flat_map(|n| [*n, 0]).collect()),
        })
    }

    /// Returns the number of sequences.
    pub fn count(&self) -> usize {
        self.cu_seqlens_q.len() - 1
    }

    /// Returns the rows of Q and O of a sequence.
    pub fn queries(&self, sequence: usize) -> Range<usize> {
        self.cu_seqlens_q[sequence] as usize..self.cu_seqlens_q[sequence + 1] as usize
    }

    /// Returns the rows of K and V that a sequence uses.
    pub fn keys(&self, sequence: usize) -> Range<usize> {
        let (first, end) = (self.cu_seqlens_k[sequence] as usize, self.cu_seqlens_k[sequence + 1] as usize);
        let used = self.seqused_k.as_ref().map_or(end - first, |used| used[sequence] as usize);
        first..end.min(first + used)
    }

    /// Returns the number of rows of Q that belong to a sequence. These rows come first.
    pub fn rows(&self) -> usize {
        self.cu_seqlens_q[self.count()] as usize
    }

    /// Returns the number of rows of K that belong to a sequence, whether they are used or not.
    pub(super) fn key_rows(&self) -> usize {
        self.cu_seqlens_k[self.count()] as usize
    }

    /// Returns the varlen problem of these sequences, with `rows` rows of Q and of K. Type, heads and scores
    /// come from `one`.
    #[must_use]
    pub fn problem(&self, one: Problem, rows: [usize; 2]) -> Problem {
        let longest =
            |starts: &[i32]| starts.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0).max(1) as usize;
        one.batch(self.count())
            .seqlen_q(longest(&self.cu_seqlens_q))
            .seqlen_k(longest(&self.cu_seqlens_k))
            .varlen(Some(rows))
    }

    /// Returns the sequences in device memory during a launch: `self`, or other sequences in the same rows.
    pub(super) fn device_lengths(&self, device_lengths: DeviceLengths) -> Self {
        let mut all = self.clone();
        let fewer = |starts: &mut Vec<i32>, random: &mut Random| {
            let lengths: Vec<i32> = starts.windows(2).map(|w| w[1] - w[0]).collect();
            for (b, length) in lengths.into_iter().enumerate() {
                starts[b + 1] = starts[b] + (random.bits() % (length as u64 + 1)) as i32;
            }
        };
        match device_lengths {
            DeviceLengths::Filled => {}
            DeviceLengths::Fewer(seed) => {
                let random = &mut Random::new(seed);
                fewer(&mut all.cu_seqlens_q, random);
                match &mut all.seqused_k {
                    Some(used) => {
                        used.iter_mut().for_each(|keys| *keys = (random.bits() % (*keys as u64 + 1)) as i32);
                    }
                    None => fewer(&mut all.cu_seqlens_k, random),
                }
            }
            // Only `seqused_k` becomes garbage. With overlapping starts, several blocks would write one row.
            DeviceLengths::Garbage(seed) => scatter(all.seqused_k.iter_mut(), self, seed),
            DeviceLengths::Lost(seed) => {
                let starts = [&mut all.cu_seqlens_q, &mut all.cu_seqlens_k].into_iter();
                scatter(starts.chain(&mut all.seqused_k), self, seed);
            }
        }
        all
    }

    /// Returns the arrays of integers, by name.
    pub(super) fn into_arrays(self) -> impl Iterator<Item = (&'static str, Vec<i32>)> {
        let starts = [("cu_seqlens_q", self.cu_seqlens_q), ("cu_seqlens_k", self.cu_seqlens_k)];
        starts.into_iter().chain(self.seqused_k.map(|used| ("seqused_k", used)))
    }
}

/// Replaces some integers by invalid ones.
fn scatter<'a>(arrays: impl Iterator<Item = &'a mut Vec<i32>>, of: &Sequences, seed: u64) {
    let (mut random, rows, keys) = (Random::new(seed), of.rows() as i32, of.key_rows() as i32);
    for x in arrays.flatten() {
        let garbage = [*x, i32::MAX, -1, *x, i32::MIN, 0, rows + 9, keys + 9, *x + 1];
        *x = garbage[(random.bits() % 9) as usize];
    }
}
