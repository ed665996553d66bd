//! Decode on a KV cache that is spread over ranks, against attention of all keys in f64.
#[path = "decode/latent.rs"]
mod latent;
#[path = "decode/wrong.rs"]
mod wrong;

use context_parallel::{Chunks, Comm, Threads, decode_attention, decode_workspace};
use ferroflash::driver::{Harness, SimBuffer, SimDriver, SimStream};
use ferroflash::plan::Problem;
use ferroflash::request::{
    AttentionRequest, Index, KvCache, KvPages, LseView, Mask, Region, Scratch, Sinks, TensorView,
};
use ferroflash::{Attention, DType, Error};
use reference::{Extras, HostTensor, Inputs, Random, Reference};
use std::time::Duration;

const DTYPE: DType = DType::F16;
const BATCH: usize = 2;
const HEADS: [usize; 2] = [4, 2];
const HEAD_DIM: usize = 64;
/// Keys of a sequence for which a rank has room.
const CAPACITY: usize = 64;

/// A logit of each query head.
const SINKS: [f32; 4] = [-1.0, 0.5, f32::NEG_INFINITY, 2.0];

/// O and the LSE.
type Results = (Vec<u16>, Vec<f32>);

/// Q, K and V of all keys.
fn tensors(keys: usize) -> ([Vec<u16>; 3], [[usize; 4]; 3]) {
    let shapes = [(1, HEADS[0]), (keys, HEADS[1]), (keys, HEADS[1])];
    let shapes = shapes.map(|(rows, heads)| [BATCH, rows, heads, HEAD_DIM]);
    let mut random = Random::new(2);
    (shapes.map(|shape| random.normals(DTYPE, shape.iter().product())), shapes)
}

fn upload(driver: &SimDriver, bytes: impl Iterator<Item = u8>) -> Result<SimBuffer, Error> {
    let bytes: Vec<u8> = bytes.collect();
    let mut buffer = driver.allocate(bytes.len())?;
    driver.upload(&mut buffer, &bytes)?;
    Ok(buffer)
}

/// Runs one rank. `change` may spoil its request.
fn run(
    (keys, chunks): (usize, &Chunks),
    transport: &Threads,
    rank: usize,
    change: impl Fn(&mut AttentionRequest<'_>, &mut Region),
) -> Result<Results, Error> {
    let attention = Attention::new(SimDriver::new("h200")?);
    let driver = attention.driver();
    let comm = Comm::new(&attention, transport, &SimStream);
    let ([q, k, v], [shape, ..]) = tensors(keys);
    let width = HEADS[1] * HEAD_DIM;
    // The rank's keys of each sequence, behind which its memory has NaN.
    let cache = |all: &[u16]| {
        let mut own = vec![0x7fffu16; BATCH * CAPACITY * width];
        for sequence in 0..BATCH {
            for (row, position) in chunks.of(rank).iter().cloned().flatten().enumerate() {
                let (to, from) = ((sequence * CAPACITY + row) * width, (sequence * keys + position) * width);
                own[to..to + width].copy_from_slice(&all[from..from + width]);
            }
        }
        upload(driver, own.into_iter().flat_map(u16::to_le_bytes))
    };
    let elements = q.len() as u64;
    let (q, k, v) = (upload(driver, q.into_iter().flat_map(u16::to_le_bytes))?, cache(&k)?, cache(&v)?);
    let lengths = [chunks.rows(rank) as i32; BATCH];
    let lengths = upload(driver, lengths.into_iter().flat_map(i32::to_le_bytes))?;
    let (o, lse) = (driver.allocate(elements as usize * 2)?, driver.allocate(BATCH * HEADS[0] * 4)?);
    let view = |buffer| TensorView::bshd(driver.address(buffer), elements, DTYPE, shape);
    let pool = |buffer| {
        let pages = [BATCH, CAPACITY, HEADS[1], HEAD_DIM];
        TensorView::bshd(driver.address(buffer), (BATCH * CAPACITY * width) as u64, DTYPE, pages)
    };
    let cache =
        KvCache::dense(KvPages::new(pool(&k), pool(&v)), Index::new(driver.address(&lengths), BATCH as u64));
    let values = LseView::contiguous(driver.address(&lse), (BATCH * HEADS[0]) as u64, [BATCH, HEADS[0], 1]);
    let mut request = AttentionRequest::cached(view(&q), cache, view(&o)).lse(values).scratch(Scratch::None);
    let logits = upload(driver, SINKS.into_iter().flat_map(f32::to_le_bytes))?;
    request = request.sinks(Sinks { address: driver.address(&logits), elements: SINKS.len() as u64 });
    let bytes = decode_workspace(&comm, &request)?;
    let memory = driver.allocate(bytes as usize)?;
    let mut messages = Region { address: driver.address(&memory), bytes };
    change(&mut request, &mut messages);
    // SAFETY: the simulator checks every access.
    unsafe { decode_attention(&comm, &request, messages)? };
    driver.synchronize(&SimStream)?;
    let (mut bytes, mut of_lse) = (vec![0; elements as usize * 2], vec![0; BATCH * HEADS[0] * 4]);
    driver.download(&o, &mut bytes)?;
    driver.download(&lse, &mut of_lse)?;
    let bits = bytes.as_chunks().0.iter().map(|x| u16::from_le_bytes(*x)).collect();
    Ok((bits, of_lse.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()))
}

/// All ranks get the attention of all keys, with equal bits. One of the ranks may have no keys.
#[test]
fn all_ranks_get_the_attention_of_all_keys() {
    for (keys, ranks) in [(1, 1), (2, 3), (77, 2), (150, 3)] {
        let chunks = Chunks::contiguous(keys, ranks).expect("chunks");
        let transports = Threads::new(ranks, Duration::from_secs(600));
        let results: Vec<Results> = std::thread::scope(|scope| {
            let chunks = &chunks;
            let spawn = |(rank, transport): (usize, Threads)| {
                scope.spawn(move || run((keys, chunks), &transport, rank, |_, _| ()).expect("runs"))
            };
            let all: Vec<_> = transports.into_iter().enumerate().map(spawn).collect();
            all.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        let (bits, shapes) = tensors(keys);
        let host = |bits, shape| HostTensor::bshd(bits, DTYPE, shape).expect("a tensor");
        let [q, k, v] = [0, 1, 2].map(|of| host(&bits[of], shapes[of]));
        let problem = Problem::new(DTYPE, BATCH, 1, HEADS[0], HEAD_DIM).heads_k(HEADS[1]).seqlen_k(keys);
        let sinks = Some(SINKS.to_vec());
        let extras = Extras { sinks, ..Extras::default() };
        let inputs = Inputs::new(problem, q, k, v).expect("inputs").extras(&extras, [0; 2]);
        let (o, lse) = &results[0];
        let reference = Reference::new(&inputs).of_merged_states(&inputs, 1.0);
        let verdict = reference.judge(&host(o, shapes[0]), Some(lse)).expect("of one shape");
        assert!(verdict.passed(), "{keys} keys: {:?}", verdict.failures().collect::<Vec<_>>());
        assert!(results.iter().all(|other| other == &results[0]), "{keys} keys: the ranks differ");
    }
}

/// A rank does not know the positions of its keys, so masks and queries that need them are refused by name.
#[test]
fn positions_are_refused_by_name() {
    let attention = Attention::new(SimDriver::new("h200").expect("a card"));
    let transports = Threads::new(1, Duration::from_secs(1));
    let comm = Comm::new(&attention, &transports[0], &SimStream);
    let view =
        |address, rows| TensorView::bshd(address, (rows * 4 * 64) as u64, DTYPE, [1, rows, 4, HEAD_DIM]);
    let [k, v] = [1, 2].map(|n| view(n << 40, 64));
    let cache = KvCache::dense(KvPages::new(k, v), Index::new(3 << 40, 1));
    let of = |rows| AttentionRequest::cached(view(4 << 40, rows), cache, view(5 << 40, rows));
    let window = Mask::Window { left: Some(3), right: Some(0) };
    let wrong = [
        (of(2), "q.shape [1, 2, 4, 64]"),
        (of(1).mask(window), "mask window 3,0"),
        (AttentionRequest::dense(view(4 << 40, 1), k, v, view(5 << 40, 1)), "keys as tensors"),
    ];
    for (request, name) in wrong {
        let error = decode_workspace(&comm, &request).expect_err(name).to_string();
        assert!(error.contains(name), "{error}");
    }
}

/// A request without sequences does nothing on any number of ranks: no rank waits for another one. Shapes and
/// workspaces that no memory has are refused.
#[test]
fn no_sequence_and_no_such_memory() {
    let attention = Attention::new(SimDriver::new("h200").expect("a card"));
    let transports = Threads::new(2, Duration::from_millis(10));
    let comm = Comm::new(&attention, &transports[0], &SimStream);
    let of = |shape: [usize; 4]| {
        let view = |address, shape| TensorView::bshd(address, 1 << 20, DTYPE, shape);
        let [k, v] = [1, 2].map(|n| view(n << 40, [1, 64, 4, HEAD_DIM]));
        let cache = KvCache::dense(KvPages::new(k, v), Index::new(3 << 40, 1));
        AttentionRequest::cached(view(4 << 40, shape), cache, view(5 << 40, shape))
    };
    let none = of([0, 1, 4, HEAD_DIM]);
    assert_eq!(decode_workspace(&comm, &none), Ok(0));
    // SAFETY: nothing is launched.
    assert_eq!(unsafe { decode_attention(&comm, &none, Region { address: 0, bytes: 0 }) }, Ok(()));

    let most = usize::MAX / HEAD_DIM;
    let [room, none] = [(6 << 40, 1 << 30), (u64::MAX, 9)];
    let wide = [1, 1, most, HEAD_DIM];
    for (shape, (address, bytes)) in [(wide, room), ([most; 4], none), ([1, 1, 4, HEAD_DIM], none)] {
        // SAFETY: the simulator checks every access.
        let refused = unsafe { decode_attention(&comm, &of(shape), Region { address, bytes }) };
        let error = refused.expect_err("no such memory");
        assert!(matches!(error, Error::Invalid { .. } | Error::Unsupported { .. }), "{error}");
    }
}
