//! Runs each variant in the simulator, and compares it with a definition in f64 that shares no code with the
//! kernels.
use ferroflash::driver::{Harness, SimDriver};
use ferroflash::request::{AttentionRequest, Index, KvCache, KvPages, LseView, TensorView};
use ferroflash::request::{VarlenKeys, VarlenQueries};
use ferroflash::spec::{And, Causal, FastDiv, Integers, MaskMarker, Scored};
use ferroflash::variant::Variant;
use ferroflash::{Attention, DType, Error};
use half::f16;
use your_own_attention::*;

type Card = Attention<SimDriver>;
type Buffer = <SimDriver as Harness>::Buffer;

const HEADS: usize = 2;
const HEAD_DIM: usize = 64;

/// The definition of a variant: a function that returns the score of head, position and key, given the scaled
/// product. Minus infinity hides a key.
type Naive<'a> = &'a dyn Fn(usize, f64, i32, i32) -> f64;

/// The tensors' layout.
#[derive(Clone, Copy, PartialEq)]
enum Front {
    Dense,
    Varlen,
    Cached,
}

/// `[queries, keys]` of each sequence. Dense sequences have equal lengths. On a cache, all sequences have
/// equal numbers of queries.
type Lengths<'a> = &'a [[usize; 2]];

/// Returns numbers between -1 and 1 that look random.
fn numbers(seed: u32, count: usize) -> Vec<f16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

fn upload(card: &Card, bytes: Vec<u8>) -> Result<(Buffer, u64), Error> {
    let mut buffer = card.driver().allocate(bytes.len())?;
    card.driver().upload(&mut buffer, &bytes)?;
    let address = card.driver().address(&buffer);
    Ok((buffer, address))
}

/// Stores 32-bit words in device memory, for parameters. The buffer must live as long as launches read it.
fn words(card: &Card, words: impl IntoIterator<Item = u32>) -> Result<(Buffer, Integers), Error> {
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let count = bytes.len() as u32 / 4;
    let (buffer, base) = upload(card, bytes)?;
    Ok((buffer, Integers { base, count, reserved: 0 }))
}

/// Runs the variant and returns the largest errors of O and LSE.
fn off<M: MaskMarker>(
    card: &Card,
    front: Front,
    lengths: Lengths<'_>,
    variant: &'static Variant<M>,
    params: M::Params,
    naive: Naive<'_>,
) -> Result<[f64; 2], Error> {
    let longest = |of: usize| lengths.iter().map(|each| each[of]).max().unwrap_or(0);
    let starts = |of: usize| {
        let next = |at: &mut usize, each: &[usize; 2]| {
            let start = *at;
            *at += if front == Front::Cached && of == 1 { longest(1) } else { each[of] };
            Some(start)
        };
        lengths.iter().scan(0, next).collect::<Vec<_>>()
    };
    let (q_starts, k_starts) = (starts(0), starts(1));
    let q_rows = q_starts.last().unwrap() + longest(0).min(lengths.last().unwrap()[0]);
    let k_rows = match front {
        Front::Cached => lengths.len() * longest(1),
        _ => k_starts.last().unwrap() + lengths.last().unwrap()[1],
    };
    let row = HEADS * HEAD_DIM;
    let [q, k, v] = [(1, q_rows), (2, k_rows), (3, k_rows)].map(|(seed, rows)| numbers(seed, rows * row));
    let bytes = |tensor: &[f16]| tensor.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let tensors = [&q, &k, &v].map(|tensor| upload(card, bytes(tensor)));
    let [(_q, q_at), (_k, k_at), (_v, v_at)] = {
        let [q, k, v] = tensors;
        [q?, k?, v?]
    };
    let (o_buffer, o_at) = upload(card, vec![0xff; q_rows * row * 2])?;
    let (lse_buffer, lse_at) = upload(card, vec![0xff; q_rows * HEADS * 4])?;
    let cumulative = |starts: &[usize], end: usize| {
        words(card, starts.iter().copied().chain([end]).map(|start| start as u32))
    };
    let (_q_starts, q_index) = cumulative(&q_starts, q_rows)?;
    let (_k_starts, k_index) = cumulative(&k_starts, k_rows)?;
    let (_keys, keys) = words(card, lengths.iter().map(|each| each[1] as u32))?;

    let (batch, [queries, max_k]) = (lengths.len(), [longest(0), longest(1)]);
    let view = |address, [batch, rows]: [usize; 2]| {
        let shape = [batch, rows, HEADS, HEAD_DIM];
        TensorView::bshd(address, shape.iter().product::<usize>() as u64, DType::F16, shape)
    };
    let (rows, columns) = match front {
        Front::Varlen => ([1, q_rows], [1, k_rows]),
        _ => ([batch, queries], [batch, max_k]),
    };
    let ([q_view, o_view], [k_view, v_view]) =
        ([q_at, o_at].map(|at| view(at, rows)), [k_at, v_at].map(|at| view(at, columns)));
    let index = |of: Integers| Index::new(of.base, of.count.into());
    let request = match front {
        Front::Dense => AttentionRequest::dense(q_view, k_view, v_view, o_view),
        Front::Varlen => {
            let q = VarlenQueries::new(batch, index(q_index), queries);
            AttentionRequest::varlen(
                q_view,
                k_view,
                v_view,
                o_view,
                q,
                VarlenKeys::new(index(k_index), max_k),
            )
        }
        Front::Cached => {
            let cache = KvCache::dense(KvPages::new(k_view, v_view), index(keys));
            AttentionRequest::cached(q_view, cache, o_view)
        }
    };
    // The LSE of dense tensors and caches is [batch][head][query]. The LSE of varlen tensors is [head][row].
    let shape = [rows[0], HEADS, rows[1]];
    let lse_view = LseView::contiguous(lse_at, (q_rows * HEADS) as u64, shape);
    let request = request.lse(lse_view).variant(variant, params);

    let (plan, stream) = (card.plan(&request)?, card.driver().stream()?);
    // SAFETY: the buffers are as large as their views say and live until the launch has run, and the
    // parameters name living buffers.
    unsafe { card.launch(&plan, &request, &stream)? };
    card.driver().synchronize(&stream)?;
    let mut o = vec![0; q_rows * row * 2];
    card.driver().download(&o_buffer, &mut o)?;
    let mut lse = vec![0; q_rows * HEADS * 4];
    card.driver().download(&lse_buffer, &mut lse)?;
    let o: Vec<_> = o.chunks_exact(2).map(|x| f16::from_le_bytes([x[0], x[1]]).to_f64()).collect();
    let lse: Vec<_> =
        lse.chunks_exact(4).map(|x| f64::from(f32::from_le_bytes([x[0], x[1], x[2], x[3]]))).collect();

    let mut worst = [0.0; 2];
    // A NaN counts as an infinite error.
    let mut note = |of: usize, is: f64, should: f64| {
        let error = if is == should { 0.0 } else { (is - should).abs() };
        worst[of] = f64::max(worst[of], if error.is_nan() { f64::INFINITY } else { error });
    };
    for (sequence, &[queries, keys]) in lengths.iter().enumerate() {
        for (head, query) in (0..HEADS).flat_map(|head| (0..queries).map(move |query| (head, query))) {
            let q_row = q_starts[sequence] + query;
            let at = |row: usize| (row * HEADS + head) * HEAD_DIM;
            let k_row = |key: usize| k_starts[sequence] + key;
            let p = (query + keys) as i32 - queries as i32;
            let score = |key: usize| {
                let product: f64 =
                    (0..HEAD_DIM).map(|d| q[at(q_row) + d].to_f64() * k[at(k_row(key)) + d].to_f64()).sum();
                naive(head, product / (HEAD_DIM as f64).sqrt(), p, key as i32)
            };
            let scores: Vec<_> = (0..keys).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<_> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..HEAD_DIM {
                let dot: f64 = (0..keys).map(|key| weights[key] * v[at(k_row(key)) + d].to_f64()).sum();
                note(0, o[at(q_row) + d], dot / sum);
            }
            let lse_row = match front {
                Front::Varlen => head * q_rows + q_row,
                _ => (sequence * HEADS + head) * queries + query,
            };
            note(1, lse[lse_row], most + sum.ln());
        }
    }
    Ok(worst)
}

/// Maximum errors. O has two roundings to f16 of numbers up to 1. The LSE has one rounding, of the weights.
const BOUNDS: [f64; 2] = [1e-3, 5e-4];

/// Checks a variant against its definition. Also checks that the comparison fails with another definition.
fn check<M: MaskMarker>(
    front: Front,
    lengths: Lengths<'_>,
    variant: &'static Variant<M>,
    params: impl Fn(&Card) -> Result<(Option<Buffer>, M::Params), Error>,
    naive: Naive<'_>,
    another: Naive<'_>,
) -> Result<(), Error> {
    let card = Attention::new(SimDriver::new("l4")?);
    let (_buffer, params) = params(&card)?;
    let errors = off(&card, front, lengths, variant, params, naive)?;
    println!("{variant:?}: O is off by {:.1e}, LSE by {:.1e}", errors[0], errors[1]);
    assert!(errors[0] <= BOUNDS[0] && errors[1] <= BOUNDS[1], "{errors:?}");
    let wrong = off(&card, front, lengths, variant, params, another)?;
    assert!(wrong[0] > 2.0 * BOUNDS[0], "{wrong:?}: the comparison sees no difference");
    Ok(())
}

/// Returns the score if the query sees the key.
fn seen(sees: bool, s: f64) -> f64 {
    if sees { s } else { f64::NEG_INFINITY }
}

const STREAM: StreamingParams = StreamingParams { first: 3, window: 20 };
fn streams(first: i32) -> impl Fn(usize, f64, i32, i32) -> f64 {
    move |_, s, p, k| seen(k <= p && (k < first || p - k < 20), s)
}

#[test]
fn streaming() -> Result<(), Error> {
    let params = |_: &Card| Ok((None, STREAM));
    check(Front::Dense, &[[150, 150]; 2], &STREAMING, params, &streams(3), &streams(4))?;
    // There are fewer queries than keys, as behind a prefix.
    check(Front::Dense, &[[70, 150]], &STREAMING, params, &streams(3), &streams(4))
}

#[test]
fn streaming_on_a_cache() -> Result<(), Error> {
    let params = |_: &Card| Ok((None, STREAM));
    check(Front::Cached, &[[2, 150], [2, 33]], &STREAMING, params, &streams(3), &streams(4))
}

#[test]
fn documents() -> Result<(), Error> {
    const ENDS: [i32; 3] = [10, 75, 140];
    let of = |p: i32| ENDS.iter().filter(|end| **end <= p).count();
    let params = |card: &Card| {
        let (buffer, of) = words(card, (0..150).map(|p| of(p) as u32))?;
        Ok((Some(buffer), of))
    };
    let naive = |_: usize, s: f64, p: i32, k: i32| seen(k <= p && of(p) == of(k), s);
    let another = |_: usize, s: f64, p: i32, k: i32| seen(k <= p && of(p + 1) == of(k + 1), s);
    check(Front::Dense, &[[150, 150]], &DOCUMENTS, params, &naive, &another)
}

#[test]
fn neighbours() -> Result<(), Error> {
    const WIDTH: i32 = 13;
    let params = |_: &Card| {
        let width = FastDiv::new(WIDTH as u32).expect("a divisor below 2^31");
        Ok((None, NeighboursParams { width, pixels: WIDTH, radius: 2, reserved: 0 }))
    };
    let near = |radius: i32| {
        move |_: usize, s: f64, p: i32, k: i32| {
            let close = |a: i32, b: i32| (a - b).abs() <= radius;
            seen(close(p / WIDTH, k / WIDTH) && close(p % WIDTH, k % WIDTH), s)
        }
    };
    check(Front::Dense, &[[169, 169]], &NEIGHBOURS, params, &near(2), &near(1))
}

/// Returns the bias of a head and distance.
fn bias(head: usize, distance: i32) -> f32 {
    ((head as i32 * 40 + distance.min(39)) as f32 * 0.7).sin()
}

#[test]
fn t5() -> Result<(), Error> {
    let params = |card: &Card| {
        let table = (0..HEADS).flat_map(|head| (0..40).map(move |distance| bias(head, distance).to_bits()));
        let (buffer, bias) = words(card, table)?;
        Ok((Some(buffer), And::new((), T5Params { bias, distances: 40, reserved: 0 })))
    };
    let naive = |head: usize, s: f64, p: i32, k: i32| seen(k <= p, s + f64::from(bias(head, p - k)));
    let another = |head: usize, s: f64, p: i32, k: i32| seen(k <= p, s + f64::from(bias(1 - head, p - k)));
    check(Front::Dense, &[[150, 150]; 2], &T5_BIAS, params, &naive, &another)?;
    check(Front::Varlen, &[[60, 60], [7, 90], [130, 130]], &T5_BIAS, params, &naive, &another)
}

/// Runs only the functions, on the host. No kernel runs.
#[test]
fn functions_on_the_host() {
    let table: Vec<u8> = (0..HEADS)
        .flat_map(|head| (0..40).flat_map(move |distance| bias(head, distance).to_le_bytes()))
        .collect();
    let address = 0x1000;
    let biases = Integers { base: address, count: 40 * HEADS as u32, reserved: 0 };
    let t5 = And::new((), T5Params { bias: biases, distances: 40, reserved: 0 });
    exact::with_memory(vec![exact::Copied { address, bytes: table }], || {
        for (head, p) in (0..HEADS).flat_map(|head| (0..150).map(move |p| (head, p))) {
            let of = exact::sequence(0, head as u32, [150, 150], 0.5);
            for k in 0..150 {
                let own = exact::score::<Streaming>(&STREAM, &of, 3.0, p, k);
                assert_eq!(f64::from(own), streams(3)(head, 1.5, p, k), "streaming, query {p}, key {k}");
                let own = exact::score::<Scored<Causal, T5>>(&t5, &of, 3.0, p, k);
                let naive = seen(k <= p, 1.5 + f64::from(bias(head, (p - k).max(0))));
                assert!(f64::from(own) == naive || (f64::from(own) - naive).abs() < 1e-6, "t5, {p}, {k}");
            }
        }
    });
}
