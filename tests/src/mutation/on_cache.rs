//! Sweeps of launches on caches, over lengths, splits, rows, columns and windows, and with invalid integers.
use ferroflash::request::{Mask, Splits};
use reference::{Case, DeviceLengths, Pages, Task};
use spec::{AttnInfo, Keys, MaskKind, PageKind};

/// The sweeps of a decode entry.
pub(super) fn decode(entry: &'static AttnInfo) -> Vec<Task> {
    let rows = entry.tile_m as usize;
    let plain = |filled: Vec<usize>| Case {
        dtype: entry.dtype,
        kv_dtype: Some(entry.kv_dtype),
        head_dim: entry.head_dim as usize,
        heads: [2, 1],
        ..Case::new(filled)
    };
    // These sequences have every length up to a few tiles. In one launch, each warp finds its sequence alone;
    // in the other launch, all warps find it together.
    let mut sweeps: Vec<_> = [(0..=31), (20..=60)].map(|lengths| plain(lengths.collect())).into();
    // There are more sequences than lanes of a warp, and the longer sequences come last.
    sweeps.push(plain((0..70).map(|b| if b > 60 { 10 * b } else { b % 3 }).collect()));
    // A small card splits the few longer sequences, so there are more work items than sequences.
    sweeps.push(plain((0..70).map(|b| if b > 66 { 10 * b } else { b % 3 }).collect()));
    // Each group of 32 sequences has a split sequence. The place of its splits depends on the groups before.
    sweeps.push(plain((0..70).map(|b| if b % 32 == 5 { 1500 } else { b % 3 }).collect()));
    // These cases have every number of splits up to a second round of the combine step. Each split has keys
    // for every warp.
    let round = 16 * entry.warps() as usize;
    let split = |n: usize| Case { splits: Splits::Exactly(n as u32), ..plain(vec![round * n + n, 40]) };
    sweeps.extend([2, 3, 5, 8, 16, 17].map(split));
    // Some of many sequences are split, including the first sequence of each 32.
    let some = (0..70).map(|b| if b % 8 == 0 { round + b } else { b % 3 });
    sweeps.push(Case { splits: Splits::Exactly(3), ..plain(some.collect()) });
    // Each turn of a warp's ring ends with a partial tile.
    let turns = |one: usize| (0..6).map(|turn| round * turn + one).collect::<Vec<_>>();
    let whole = |case: Case| Case { splits: Splits::Exactly(1), ..case };
    sweeps.extend([5, round - 1].map(|one| whole(plain(turns(one)))));
    sweeps.extend(
        [127, 128, 129, 255, 256, 257]
            .map(|keys| Case { splits: Splits::Keys(128), ..plain(vec![keys, 300]) }),
    );
    sweeps.extend((1..=rows).map(|heads| Case { heads: [heads, 1], ..plain(vec![33]) }));
    for queries in 2..=rows / 2 {
        let case = Case { queries, mask: Mask::Causal, ..plain(vec![1, queries, 40]) };
        sweeps.push(Case { counters: queries % 2 == 0, ..case });
    }
    // Columns are loaded in chunks of 16 bytes. Behind the last chunk, another row or NaN follows.
    let chunk = 16 / entry.kv_dtype.bytes();
    let narrow = (chunk..entry.head_dim as usize).step_by(entry.head_dim as usize / 4);
    sweeps.extend(narrow.map(|head_dim| whole(Case { head_dim, ..plain(turns(7)) })));
    // The last rows of the cache have partial chunks.
    sweeps.push(whole(Case { head_dim: chunk, ..plain(turns(2)) }));
    let pages = if entry.keys == Keys::Cache(PageKind::Tiles) { Pages::Nhd(16) } else { Pages::Nhd(1) };
    let last = |seed| whole(Case { head_dim: chunk, pages, seed, ..plain(turns(9)) });
    sweeps.extend((1..=3).map(last));
    if entry.mask == MaskKind::Local {
        sweeps.extend((0..=34).step_by(3).map(|left| Case {
            queries: 2,
            mask: Mask::Window { left: Some(left), right: Some(left % 2) },
            ..plain(vec![50, 17])
        }));
    }
    sweeps.push(Case { sinks: true, ..plain(vec![33, 0, 5]) });
    for batch in [6, 40] {
        let case = Case { max_k: 120, pages: Pages::Hnd(16), ..plain(mixed(batch)) };
        sweeps.push(Case { device_lengths: vec![DeviceLengths::Garbage(batch as u64)], ..case });
    }
    sweeps.into_iter().map(Task::Attention).collect()
}

/// The sweeps of a paged entry.
pub(super) fn paged(entry: &'static AttnInfo) -> Vec<Task> {
    let [m, n] = [entry.tile_m, entry.tile_n].map(|tile| tile as usize);
    // Columns are loaded in chunks of 16 bytes.
    let chunk = 16 / entry.kv_dtype.bytes();
    let plain = |filled: Vec<usize>| Case {
        dtype: entry.dtype,
        kv_dtype: Some(entry.kv_dtype),
        head_dim: entry.head_dim as usize,
        heads: [1, 1],
        mask: Mask::Causal,
        pages: Pages::Nhd(16),
        ..Case::new(filled)
    };
    let mut sweeps = vec![];
    // TMA takes eight rows at a time.
    let of = |keys: usize| if entry.has_maps() { 8 * keys } else { keys };
    // The last key and the last query have every position, with pages of all sizes.
    let pages = [Pages::Nhd(16), Pages::Hnd(of(5)), Pages::Interleaved(of(1)), Pages::Dense, Pages::Rows];
    for (turn, shift) in (0..n).step_by(3).enumerate() {
        let case = plain(vec![n + shift + 1, 3]).varlen_queries([shift + 1, 2]);
        sweeps.push(Case { pages: pages[turn % pages.len()], ..case });
    }
    sweeps.extend((1..=m).step_by(9).map(|rows| plain(vec![m + 5, 8]).varlen_queries([rows, 3])));
    // The last row of Q lies at the end of its memory.
    sweeps.extend((5..=m).step_by(16).map(|queries| Case { queries, ..plain(vec![m + 5]) }));
    for blocks in 2..=6 {
        sweeps.push(plain(vec![blocks * n + 3]).varlen_queries([m]));
        sweeps.push(Case { mask: Mask::Full, ..plain(vec![blocks * n]).varlen_queries([m + 1]) });
    }
    // On the 132 SMs of an H200, some blocks have three tiles. Before a block's next tile, all warps with
    // rows wait until the stores of the previous tile have left their buffer.
    if entry.has_maps() {
        sweeps.push(Case { queries: 20, heads: [2 * 132 + 1, 1], ..plain(vec![20]) });
    }
    // Behind the last column, another row or NaN follows.
    let narrow = (chunk..entry.head_dim as usize).step_by(3 * chunk);
    sweeps.extend(narrow.map(|head_dim| Case {
        head_dim,
        pages: Pages::Dense,
        ..plain((0..4).map(|block| block * n + 5).collect()).varlen_queries([3; 4])
    }));
    sweeps.extend((1..=5).map(|seed| Case {
        head_dim: chunk,
        pages: Pages::Nhd(of(1)),
        seed,
        ..plain(vec![3 * n + 5]).varlen_queries([9])
    }));
    // There are more sequences than a warp examines at once, in a varlen launch and in a launch with equal
    // numbers of queries.
    sweeps.push(plain(vec![7; 41]).varlen_queries((0..41).map(|b| b % 5).collect::<Vec<_>>()));
    sweeps.push(Case { queries: m + 1, ..plain(vec![m + 1, m, 9]) });
    // Sequences without keys have rows whose results are zeros. The last row has every place in a base tile's
    // sixteen rows.
    let empty = (1..=m / 16).map(|tiles| 16 * tiles - 3 * tiles % 16);
    sweeps.push(plain(vec![0; m / 16]).varlen_queries(empty.collect::<Vec<_>>()));
    if entry.mask == MaskKind::Local {
        for (left, right) in [(0, 0), (3, 1), (n, 5), (m + 2 * n, 0), (2 * n, n)] {
            let [left, right] = [left, right].map(|keys| Some(keys as u32));
            let mask = Mask::Window { left, right };
            sweeps.push(Case {
                mask,
                ..plain(vec![m + 4 * n + left.unwrap_or(0) as usize % n]).varlen_queries([m + 7])
            });
        }
        sweeps.push(Case { softcap: Some(3.0), ..plain(vec![2 * n]).varlen_queries([m]) });
    }
    let case = Case { max_k: 120, ..plain(mixed(6)).varlen_queries([1, 20, 0, 33, 2, 17]) };
    sweeps.push(Case { device_lengths: vec![DeviceLengths::Garbage(1), DeviceLengths::Garbage(2)], ..case });
    sweeps.into_iter().map(Task::Attention).collect()
}

/// Lengths of `batch` sequences, for caches with room for 120 keys per sequence.
fn mixed(batch: usize) -> Vec<usize> {
    (0..batch).map(|b| if b % 3 == 0 { 120 } else { 50 }).collect()
}
