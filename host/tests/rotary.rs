//! Tests rotary embedding in appends: the planner's kernels, their parameters, and the refused requests.

use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use ferroflash::spec::{PartPairs, RotaryAppendParams};
use ferroflash::{request::*, *};

const FAR: u64 = 1 << 40;

fn card(name: &str) -> &'static Capabilities {
    Capabilities::profile(name).expect("a known card")
}

/// Returns a view of 100 tokens.
fn tokens(at: u64, dtype: DType, heads: usize, head_dim: usize) -> TensorView {
    TensorView::bshd(at * FAR, (100 * heads * head_dim) as u64, dtype, [1, 100, heads, head_dim])
}

/// Returns a table of 500 positions, for `dims` columns.
fn table(dtype: DType, dims: usize) -> TensorView {
    TensorView::bshd(6 * FAR, 500 * dims as u64, dtype, [1, 500, 1, dims])
}

/// Returns an append of 90 tokens of 2 key heads and 8 query heads of 64 columns, of which 32 rotate.
fn append(dtype: DType, cache: DType) -> Append {
    let [keys, values] = [3, 4].map(|n| TensorView::bshd(n * FAR, 20 * 16 * 128, cache, [20, 16, 2, 64]));
    let rotary = Rotary::cos_sin(table(DType::F32, 32), Positions::i64(7 * FAR, 90))
        .queries(tokens(8, dtype, 8, 64), tokens(9, dtype, 8, 64));
    let pages = KvPages::new(keys, values);
    Append::new(tokens(1, dtype, 2, 64), tokens(2, dtype, 2, 64), pages, Slots::i64(5 * FAR, 90))
        .rotary(rotary)
}

#[test]
fn the_kernel_follows_from_types_and_device() {
    use DType::{Bf16, E4m3, F16};
    for (name, dtype, cache, symbol, why) in [
        ("a100", F16, F16, "append_rotary_f16", "rotates"),
        ("h200", Bf16, Bf16, "append_rotary_bf16", "rotates"),
        ("a100", F16, E4m3, "append_rotary_f16_e4m3", "integer"),
        ("a10", Bf16, E4m3, "append_rotary_bf16_e4m3", "integer"),
        ("l4", F16, E4m3, "append_rotary_f16_e4m3_native", "instruction"),
        ("b200", Bf16, E4m3, "append_rotary_bf16_e4m3_native", "instruction"),
    ] {
        let plan = plan(&append(dtype, cache), card(name)).expect("valid");
        assert_eq!(plan.contract().symbol, symbol, "{name}");
        assert!(plan.reason().contains(why), "{name}: {}", plan.reason());
        // There are 900 rows of 4 pairs of parts, and 64 rows per block.
        assert_eq!(plan.grid(), [15, 1, 1]);
    }
}

#[test]
fn the_parameters_are_the_requests() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("h200"));
    let first = append(DType::F16, DType::F16);
    let [cos, mut sin] = [table(DType::F16, 16); 2];
    sin.address += 64 * FAR;
    let rotary = Rotary::new(cos, sin, Positions::i32(7 * FAR, 90));
    let second = first.rotary(rotary.style(RotaryStyle::Interleaved).first_column(8));
    let rows = tokens(1, DType::F16, 1, 576);
    let pages = TensorView::bshd(3 * FAR, 320 * 576, DType::F16, [20, 16, 1, 576]);
    let latent = Append::latent(rows, KvPages::latent(pages, 512), Slots::i64(5 * FAR, 90));
    let latent =
        latent.rotary(Rotary::cos_sin(table(DType::F32, 64), Positions::i64(7 * FAR, 90)).first_column(512));
    let plan = attention.plan(&first)?;
    attention.load(&plan)?;
    for request in [first, second, latent] {
        // SAFETY: the fake driver runs nothing.
        unsafe { attention.launch(&plan, &request, &7)? };
    }
    let launches = attention.driver().launches();
    let sent = launches.iter().map(|launch| {
        assert_eq!(launch.params.len(), size_of::<RotaryAppendParams>());
        // SAFETY: the launch has the size of the parameters, and every byte that a host writes has a value.
        unsafe { launch.params.as_ptr().cast::<RotaryAppendParams>().read_unaligned() }
    });
    let [one, two, three] = <[_; 3]>::try_from(sent.collect::<Vec<_>>()).expect("three launches");
    assert_eq!((one.append.heads.get(), one.append.parts.rows, one.key_heads), (10, 900, 2));
    assert_eq!((one.q.base, one.rotated_q.base, one.append.v.chunks), (8 * FAR, 9 * FAR, 8));
    assert_eq!((one.pairs, one.interleaved), (PartPairs::halves(0, 2), 0));
    let angles = one.angles;
    assert_eq!((angles.cos, angles.sin, angles.row_bytes), (6 * FAR, 6 * FAR + 64, 128));
    assert_eq!((angles.rows, angles.eights, angles.tokens), (500, 2, 90));
    assert_eq!((angles.positions, angles.wide_positions, angles.wide), (7 * FAR, 1, 1));
    assert_eq!((two.append.heads.get(), two.q.base, two.q.rows), (2, 0, 0));
    assert_eq!((two.pairs, two.interleaved), (PartPairs::neighbours(1, 2), 1));
    assert_eq!((two.angles.sin, two.angles.row_bytes), (70 * FAR, 32));
    assert_eq!((two.angles.wide_positions, two.angles.wide), (0, 0));
    assert_eq!((three.append.v.chunks, three.append.cache.chunks, three.append.k.chunks), (0, 72, 72));
    assert_eq!(three.pairs, PartPairs::halves(64, 4));
    let mut plain = first;
    plain.rotary = None;
    // SAFETY: nothing is launched.
    let message = unsafe { attention.launch(&plan, &plain, &7) }.expect_err("other kernel").to_string();
    assert!(message.contains("without rotary embedding; the plan is for"), "{message}");
    Ok(())
}

/// The queries of a request.
fn queries(a: &mut Rotary) -> &mut RotaryQueries {
    a.queries.as_mut().expect("has queries")
}

/// The name of the fault, the change that makes it, and words of the refusal.
type Refused = (&'static str, fn(&mut Rotary), &'static [&'static str]);
#[rustfmt::skip]
const REFUSED: &[Refused] = &[
    ("batches of angles", |r| r.cos.shape[0] = 2, &["rotary.cos.shape", "[1, positions, 1, dims / 2]"]),
    ("no position", |r| r.cos.shape[1] = 0, &["rotary.cos.shape", "1 or more"]),
    ("other sines", |r| r.sin.shape[1] = 400, &["rotary.sin.shape", "[1, 500, 1, 16]"]),
    ("sines with other rows", |r| r.sin.strides[1] = 16, &["rotary.sin.strides", "rotary.cos, 32"]),
    ("sines of another type", |r| r.sin.dtype = DType::F16, &["rotary.sin.dtype: f16", "rotary.cos, f32"]),
    ("angles of another type", |r| { r.cos.dtype = DType::Bf16; r.sin.dtype = DType::Bf16 },
        &["not supported: bf16 angles and f16 tokens", "f32"]),
    ("eight angles and a half", |r| { r.cos.shape[3] = 12; r.sin.shape[3] = 12 },
        &["not supported: a rotation of 24 columns", "multiples of 16"]),
    ("a column inside of a chunk", |r| r.first_column = 4, &["rotary.first_column 4", "multiple of 8"]),
    ("too many columns", |r| r.first_column = 40, &["32 columns from column 40 on", "64 columns"]),
    ("columns beyond 64 bits", |r| r.first_column = usize::MAX - 7, &["must lie in a head"]),
    ("fewer positions than slots", |r| r.positions.elements = 89, &["rotary.positions.elements: 89", "90"]),
    ("positions misaligned", |r| r.positions.address += 4, &["rotary.positions.address", "multiple of 8"]),
    ("cosines misaligned", |r| r.cos.address += 8, &["rotary.cos.address", "multiple of 16"]),
    ("a small table", |r| r.sin.elements = 100, &["rotary.sin.elements: 100", "need"]),
    ("fewer queries than slots", |r| queries(r).q.shape[1] = 89, &["q.shape", "90 or more"]),
    ("queries of another head dim", |r| queries(r).q.shape[3] = 32, &["q.shape", "64]"]),
    ("no query head", |r| queries(r).q.shape[2] = 0, &["q.shape", "heads"]),
    ("queries of another type", |r| queries(r).q.dtype = DType::Bf16, &["q.dtype: bf16", "f16"]),
    ("outputs of another shape", |r| queries(r).rotated.shape[2] = 4,
        &["rotary.rotated.shape", "shape of q"]),
    ("outputs of another type", |r| queries(r).rotated.dtype = DType::Bf16, &["rotary.rotated.dtype: bf16"]),
    ("outputs that overlap", |r| queries(r).rotated.strides[2] = 0, &["rotary.rotated.strides", "overlap"]),
    ("outputs beside their inputs", |r| queries(r).rotated.address = queries(r).q.address + 16,
        &["rotary.rotated must not overlap q.address"]),
    ("in place with other strides", |r| {
        let q = queries(r).q;
        queries(r).rotated = TensorView { strides: [0, 64, 6400, 1], ..q };
    }, &["rotary.rotated must not overlap q.address"]),
    ("outputs on keys", |r| queries(r).rotated.address = FAR, &["rotary.rotated must not overlap k.address"]),
    ("outputs in the cache", |r| queries(r).rotated.address = 3 * FAR,
        &["rotary.rotated must not overlap cache.keys.address"]),
    ("outputs on angles", |r| queries(r).rotated.address = 6 * FAR,
        &["rotary.rotated must not overlap rotary.cos.address"]),
    ("outputs on positions", |r| queries(r).rotated.address = 7 * FAR,
        &["rotary.rotated must not overlap rotary.positions.address"]),
    ("an odd table", |r| *r = Rotary::cos_sin(table(DType::F32, 33), r.positions),
        &["rotary.sin.shape: [1, 500, 1, 17]", "[1, 500, 1, 16]"]),
    ("angles in the cache", |r| r.sin.address = 4 * FAR,
        &["cache.values must not overlap rotary.sin.address"]),
];

#[test]
fn refusals_name_the_value_and_what_would_be_right() {
    for (name, change, says) in REFUSED {
        let mut request = append(DType::F16, DType::F16);
        change(request.rotary.as_mut().expect("rotates"));
        let message = plan(&request, card("l4")).expect_err(name).to_string();
        for words in *says {
            assert!(message.contains(words), "{name}: {message:?} should contain {words:?}");
        }
    }
}

#[test]
fn queries_may_rotate_in_place_and_in_a_packed_buffer() {
    let mut request = append(DType::F16, DType::F16);
    let all = queries(request.rotary.as_mut().expect("rotates"));
    all.rotated = all.q;
    plan(&request, card("l4")).expect("in place");
    // Q, K and V lie in one buffer [tokens, 12 heads, 64].
    let part = |first: u64, heads: usize| {
        let (skip, shape) = (first * 64, [1, 100, heads, 64]);
        TensorView::new(FAR + 2 * skip, 76_800 - skip, DType::F16, shape, [76_800, 768, 64, 1])
    };
    let q = part(0, 8);
    let rotary = request.rotary.expect("rotates").queries(q, q);
    (request.k, request.v) = (part(8, 2), part(10, 2));
    plan(&request.rotary(rotary), card("l4")).expect("in a packed buffer");
}
