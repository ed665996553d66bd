//! Decode of latents (sparse MLA) whose rows are spread over ranks, against one rank that has all rows.
use crate::upload;
use context_parallel::{Comm, Threads, decode_attention, decode_workspace};
use ferroflash::driver::{Harness, SimDriver, SimStream};
use ferroflash::request::{
    AttentionRequest, Index, KvPages, ListedKeys, LseView, Region, Scratch, TensorView,
};
use ferroflash::{Attention, DType, Error};
use reference::Random;
use std::time::Duration;

const QUERIES: usize = 3;
const HEADS: usize = 16;
/// Columns of a row, and those of them that are its value.
const WIDTH: usize = 576;
const VALUES: usize = 512;
/// Rows of the whole cache, and entries of a list.
const ROWS: usize = 40;
const TOPK: usize = 24;

/// Returns the rows of the whole cache that each query sees: no row twice.
fn lists() -> Vec<Vec<usize>> {
    let mut random = Random::new(3);
    let of = |query: usize| {
        let mut rows: Vec<usize> = (0..ROWS).collect();
        random.shuffle(&mut rows);
        rows.truncate(TOPK - 7 * query);
        rows
    };
    (0..QUERIES).map(of).collect()
}

/// Returns O and the LSE of one of `ranks` ranks, which has every `ranks`-th row of the cache.
fn run(transport: &Threads, [rank, ranks]: [usize; 2]) -> Result<(Vec<f32>, Vec<f32>), Error> {
    let attention = Attention::new(SimDriver::new("h200")?);
    let driver = attention.driver();
    let comm = Comm::new(&attention, transport, &SimStream);
    let mut random = Random::new(9);
    let [q, rows] = [QUERIES * HEADS, ROWS].map(|rows| random.normals(DType::Bf16, rows * WIDTH));
    let own = rows.chunks(WIDTH).skip(rank).step_by(ranks).flatten().copied();
    let of_own: Vec<u16> = own.collect();
    let bytes = |bits: &[u16]| bits.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (of_q, cache) = (upload(driver, bytes(&q).into_iter())?, upload(driver, bytes(&of_own).into_iter())?);
    let entries = lists().into_iter().flat_map(|list| {
        let own = list.into_iter().filter(|row| row % ranks == rank).map(|row| (row / ranks) as i32);
        own.chain(std::iter::repeat(-1)).take(TOPK)
    });
    let entries = upload(driver, entries.flat_map(i32::to_le_bytes))?;
    let (of_o, of_lse) =
        (driver.allocate(QUERIES * HEADS * VALUES * 2)?, driver.allocate(QUERIES * HEADS * 4)?);
    let view = |buffer, width: usize| {
        let shape = [QUERIES, 1, HEADS, width];
        TensorView::bshd(driver.address(buffer), shape.iter().product::<usize>() as u64, DType::Bf16, shape)
    };
    let count = of_own.len() / WIDTH;
    let pool =
        TensorView::bshd(driver.address(&cache), of_own.len() as u64, DType::Bf16, [1, count, 1, WIDTH]);
    let index = Index::new(driver.address(&entries), (QUERIES * TOPK) as u64);
    let keys = ListedKeys::new(KvPages::latent(pool, VALUES), index, TOPK);
    let lse = LseView::contiguous(driver.address(&of_lse), (QUERIES * HEADS) as u64, [QUERIES, HEADS, 1]);
    let request =
        AttentionRequest::sparse(view(&of_q, WIDTH), keys, view(&of_o, VALUES)).scale(0.05).lse(lse);
    let request = request.scratch(Scratch::None);
    let bytes = decode_workspace(&comm, &request)?;
    let memory = driver.allocate(bytes as usize)?;
    let messages = Region { address: driver.address(&memory), bytes };
    // SAFETY: the simulator checks every access.
    unsafe { decode_attention(&comm, &request, messages)? };
    driver.synchronize(&SimStream)?;
    let (mut o, mut lse) = (vec![0; QUERIES * HEADS * VALUES * 2], vec![0; QUERIES * HEADS * 4]);
    driver.download(&of_o, &mut o)?;
    driver.download(&of_lse, &mut lse)?;
    let wide = |x: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
    let o = o.as_chunks().0.iter().map(wide).collect();
    Ok((o, lse.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()))
}

fn all(ranks: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    std::thread::scope(|scope| {
        let spawn = |(rank, transport): (usize, Threads)| {
            scope.spawn(move || run(&transport, [rank, ranks]).expect("runs"))
        };
        let transports = Threads::new(ranks, Duration::from_secs(600)).into_iter().enumerate();
        let threads: Vec<_> = transports.map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn latents_may_be_spread_over_ranks() {
    let (whole, whole_lse) = all(1).swap_remove(0);
    for ranks in [2, 3] {
        let of_ranks = all(ranks);
        assert!(of_ranks.iter().all(|other| other == &of_ranks[0]), "{ranks} ranks differ");
        let (o, lse) = &of_ranks[0];
        // A rank's O, its merge and one rank's O have a rounding each.
        let largest = whole.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        for (a, b) in o.iter().zip(&whole) {
            assert!((a - b).abs() <= 3.0 * largest / 256.0, "{ranks} ranks: {a} instead of {b}");
        }
        // The kernel adds probabilities that it has rounded to bf16.
        for (a, b) in lse.iter().zip(&whole_lse) {
            assert!((a - b).abs() <= 1.0 / 512.0, "{ranks} ranks: lse {a} instead of {b}");
        }
    }
}
