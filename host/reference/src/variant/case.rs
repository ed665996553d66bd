//! The cases of a variant's kernel.
use super::SEEDS;
use ferroflash::kernels::{AttnInfo, Schedule};
use ferroflash::spec::{Keys, Pass, Queries};
use std::fmt;

/// The kind of a case's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// `[batch, queries or keys, heads, head_dim]`.
    Dense,
    /// Sequences of any lengths in one tensor.
    Varlen,
    /// Keys on a KV cache, with equal query counts.
    Cached,
    /// Keys on a KV cache, with any query counts.
    VarlenCached,
}

/// A problem of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The kernel.
    pub kernel: AttnInfo,
    /// The kind of tensors.
    pub front: Front,
    /// Queries and keys of each sequence.
    pub lengths: Vec<[usize; 2]>,
    /// Query heads and key heads.
    pub heads: [usize; 2],
    /// The seed of its tensors.
    pub seed: u64,
}

impl Case {
    /// Columns of a head.
    pub fn head_dim(&self) -> usize {
        self.kernel.head_dim as usize
    }

    /// The maximum number of queries per sequence.
    pub fn max_queries(&self) -> usize {
        self.lengths.iter().map(|[queries, _]| *queries).max().unwrap_or(0)
    }

    /// The maximum number of keys per sequence.
    pub fn max_keys(&self) -> usize {
        self.lengths.iter().map(|[_, keys]| *keys).max().unwrap_or(0)
    }

    /// Queries and keys of all sequences.
    pub(super) fn rows(&self) -> [usize; 2] {
        self.lengths.iter().fold([0; 2], |[q, k], [queries, keys]| [q + queries, k + keys])
    }

    /// The index of the first query, and of the first key, of each sequence among the queries and keys of all
    /// sequences.
    pub(super) fn starts(&self) -> Vec<[usize; 2]> {
        let next = |at: &mut [usize; 2], [queries, keys]: &[usize; 2]| {
            let start = *at;
            *at = [at[0] + queries, at[1] + keys];
            Some(start)
        };
        self.lengths.iter().scan([0; 2], next).collect()
    }

    /// Batches and rows of Q and O.
    pub(super) fn q_shape(&self) -> [usize; 2] {
        match self.front {
            Front::Dense | Front::Cached => [self.lengths.len(), self.max_queries()],
            Front::Varlen | Front::VarlenCached => [1, self.rows()[0]],
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let front = match self.front {
            Front::Dense => "dense tensors",
            Front::Varlen => "varlen tensors",
            Front::Cached => "a KV cache",
            Front::VarlenCached => "a KV cache with varlen queries",
        };
        let [heads_q, heads_k] = self.heads;
        write!(
            f,
            "{} on {front}, [queries, keys] of each sequence {:?}, {heads_q} query heads on {heads_k} key \
             heads, head_dim {}, {}, seed {}",
            self.kernel.contract.symbol,
            self.lengths,
            self.kernel.head_dim,
            self.kernel.dtype.name(),
            self.seed
        )
    }
}

/// Equal numbers of query and key heads, and heads in groups.
const HEADS: [[usize; 2]; 2] = [[2, 2], [4, 2]];

/// The cases of a kernel, with the first seed.
///
/// # Errors
/// Returns the reason if there is no case.
pub(super) fn edges(kernel: &AttnInfo) -> Result<Vec<Case>, &'static str> {
    if kernel.head_dim_v != kernel.head_dim && !kernel.is_latent() {
        return Err("there are no cases of values with another head dim");
    }
    if kernel.kv_dtype.bytes() == 1 {
        return Err("there are no cases of eight-bit KV caches");
    }
    let case = |front, lengths: &[[usize; 2]], heads| Case {
        kernel: *kernel,
        front,
        lengths: lengths.to_vec(),
        heads,
        seed: SEEDS[0],
    };
    let [m, n] = [kernel.tile_m as usize, kernel.tile_n as usize];
    let pairs = [
        [1, 1],
        [n - 1, n - 1],
        [n, n],
        [n + 1, n + 1],
        [m + 1, n + 3],
        [3, 2 * n + 1],
        [m + 5, m + 2 * n + 7],
    ];
    let reversed: Vec<_> = pairs.into_iter().rev().chain([[0, n], [3, 0]]).collect();
    Ok(match (kernel.keys, kernel.schedule) {
        (Keys::Latent | Keys::Listed, _) => return Err("there are no cases of latent KV caches"),
        (Keys::Quantised | Keys::QuantisedAlone | Keys::OperandCache, _) => {
            return Err("there are no cases of products of eight bits");
        }
        _ if kernel.queries == Queries::Mixed => return Err("there are no cases of mixed batches"),
        (Keys::Batched, _) => {
            let heads = HEADS.into_iter().cycle();
            let dense = |(pair, heads)| case(Front::Dense, &[pair; 2], heads);
            // One kernel of gradients takes both kinds of tensors.
            let varlen = HEADS.into_iter().filter(|_| kernel.pass == Pass::DkDv);
            let varlen = varlen.map(|heads| case(Front::Varlen, &reversed, heads));
            pairs.into_iter().zip(heads).map(dense).chain(varlen).collect()
        }
        (Keys::Varlen, _) => HEADS.map(|heads| case(Front::Varlen, &reversed, heads)).into(),
        (Keys::Cache(_), Schedule::Transposed) => {
            let with = |queries: usize, heads| {
                let keys = [1, 2, n - 1, n, n + 1, 0, 100, 331];
                case(Front::Cached, &keys.map(|keys| [queries, keys]), heads)
            };
            // The query counts are one, several, and so many that the rows exceed a block.
            vec![with(1, [2, 2]), with(1, [4, 2]), with(3, [4, 1]), with((m / 2 + 1).min(32), [2, 1])]
        }
        (Keys::Cache(_), _) => {
            let equal = [n + 1, 0, 1, m + 2 * n + 7].map(|keys| [m + 1, keys]);
            vec![case(Front::Cached, &equal, HEADS[0]), case(Front::VarlenCached, &reversed, HEADS[1])]
        }
    })
}
