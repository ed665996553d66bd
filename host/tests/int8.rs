//! Tests the scales of int8 KV caches in the parameters.
use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::on_cache::{FAR, MANY, Shape, decode};
use crate::parts::cache;
use core::mem::{offset_of, size_of};
use ferroflash::{request::*, *};
use spec::{AppendParams, DecodeOrder, DecodeParams, ManyParams, PagedParams, PerHead};

/// 8 sequences of 1 query on at most 4096 keys, in 2048 pages of 16.
const ONE: Shape = Shape { batch: 8, ..MANY };
const PROMPT: Shape = Shape { queries: 512, ..ONE };
/// Varlen queries; with 1000 rows, a mixed batch.
const MIXED: Shape = Shape { varlen: true, ..PROMPT };

/// A causal request on an int8 cache.
fn request(shape: Shape) -> AttentionRequest<'static> {
    let mut r = decode(shape).mask(Mask::Causal);
    if shape.varlen {
        r = r.scratch(Scratch::workspace(20 * FAR, 1 << 20));
        for view in [&mut r.q, &mut r.o] {
            view.shape[1] = view.shape[1].min(1000);
        }
    }
    let pages = &mut cache(&mut r).pages;
    let int8 = |view: TensorView| TensorView { dtype: DType::Int8, ..view };
    let [count, page, heads, _] = pages.keys.shape;
    let scales = |n: u64| TokenScales::contiguous(n * FAR, (count * page * heads) as u64, heads);
    *pages = KvPages::int8(int8(pages.keys), int8(pages.values), scales(8), scales(9));
    r
}

/// An append of 90 tokens of 2 heads of 64 columns.
fn append(dtype: DType) -> Append {
    let [k, v] = [1, 2].map(|n| TensorView::bshd(n * FAR, 100 * 128, dtype, [1, 100, 2, 64]));
    let pages = [3, 4].map(|n| TensorView::bshd(n * FAR, 20 * 16 * 128, DType::Int8, [20, 16, 2, 64]));
    let scales = |n: u64| TokenScales::contiguous(n * FAR, 20 * 16 * 2, 2);
    Append::new(k, v, KvPages::int8(pages[0], pages[1], scales(6), scales(7)), Slots::i64(5 * FAR, 90))
}

#[test]
fn scales_are_in_the_parameters() -> Result<(), Error> {
    with_ptx();
    let attention = Attention::new(FakeDriver::new("l4"));
    let sent = || attention.driver().launches().last().expect("a launch").params.clone();
    let check = |params: Vec<u8>, size: usize, at: usize, [first, slot]: [u64; 2]| {
        assert_eq!(params.len(), size);
        let number = |at: usize| u64::from_ne_bytes(params[at..][..8].try_into().expect("8 bytes"));
        let scales: Vec<_> = (0..8).map(|i| number(at + 8 * i)).collect();
        assert_eq!(scales, [first * FAR, slot, 4, 0, (first + 1) * FAR, slot, 4, 0]);
    };
    let paged = offset_of!(PagedParams<[PerHead; 2]>, scales);
    let many = offset_of!(ManyParams<PagedParams<[PerHead; 2]>>, paged) + paged;
    for (shape, size, at) in [
        (ONE, size_of::<DecodeParams>(), offset_of!(DecodeParams, scales)),
        (PROMPT, size_of::<PagedParams<[PerHead; 2]>>(), paged),
        (MIXED, size_of::<ManyParams<PagedParams<[PerHead; 2]>>>(), many),
    ] {
        let request = request(shape);
        let plan = attention.plan(&request)?;
        attention.load(&plan)?;
        // SAFETY: nothing runs.
        unsafe { attention.launch(&plan, &request, &7) }?;
        check(sent(), size, at, [8, 32]);
    }
    // Blocks of 8 rows split a sequence from two shares of the device on, blocks of 16 rows from more.
    for (shape, threshold) in [(ONE, 1.99_f32), (Shape { queries: 4, ..ONE }, 2.25)] {
        let request = request(shape);
        let plan = attention.plan(&request)?;
        attention.load(&plan)?;
        // SAFETY: nothing runs.
        unsafe { attention.launch(&plan, &request, &7) }?;
        let at = offset_of!(DecodeParams, order) + offset_of!(DecodeOrder, threshold);
        assert_eq!(sent()[at..][..4], threshold.to_ne_bytes(), "{}", plan.contract().symbol);
    }
    let request = append(DType::F16);
    let plan = attention.plan(&request)?;
    attention.load(&plan)?;
    // SAFETY: nothing runs.
    unsafe { attention.launch(&plan, &request, &7) }?;
    check(sent(), size_of::<AppendParams>(), offset_of!(AppendParams, scales), [6, 8]);
    Ok(())
}
