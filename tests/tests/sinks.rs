//! Tests sink logits of extreme sizes.
use ferroflash::driver::Harness;
use ferroflash::driver::SimDriver;
use ferroflash::request::{AttentionRequest, Index, KvCache, KvPages, LseView, Sinks, TensorView};
use ferroflash::{Attention, DType};

/// O and LSE of a row with 16 keys, whose values are 1 and whose scores are 0, and with this sink logit.
fn row_beside(logit: f32) -> (f32, f32) {
    const DIM: usize = 64;
    let attention = Attention::new(SimDriver::new("l4").expect("a known card"));
    let driver = attention.driver();
    let put = |name: &str, bytes: &[u8]| {
        let mut buffer = driver.allocate_named(name, bytes.len()).expect("room");
        driver.upload(&mut buffer, bytes).expect("a copy");
        buffer
    };
    let ones = half::f16::ONE.to_bits().to_ne_bytes();
    let (q, k, v) = (put("q", &[0; 2 * DIM]), put("k", &[0; 32 * DIM]), put("v", &ones.repeat(16 * DIM)));
    let (o, lse) = (put("o", &[0xff; 2 * DIM]), put("lse", &[0xff; 4]));
    let (lengths, sinks) = (put("seqused_k", &16i32.to_ne_bytes()), put("sinks", &logit.to_ne_bytes()));
    let row = |buffer| TensorView::bshd(driver.address(buffer), DIM as u64, DType::F16, [1, 1, 1, DIM]);
    let page =
        |buffer| TensorView::bshd(driver.address(buffer), 16 * DIM as u64, DType::F16, [1, 16, 1, DIM]);
    let cache = KvCache::dense(KvPages::new(page(&k), page(&v)), Index::new(driver.address(&lengths), 1));
    let decode = AttentionRequest::cached(row(&q), cache, row(&o))
        .sinks(Sinks { address: driver.address(&sinks), elements: 1 })
        .lse(LseView::contiguous(driver.address(&lse), 1, [1, 1, 1]));
    let (plan, stream) = (attention.plan(&decode).expect("a plan"), driver.stream().expect("a stream"));
    // SAFETY: every buffer is as large as its view states, and no other launch runs.
    unsafe { attention.launch(&plan, &decode, &stream) }.expect("a launch");
    let (mut o_bytes, mut lse_bytes) = ([0; 2], [0; 4]);
    driver.download(&o, &mut o_bytes).expect("a copy");
    driver.download(&lse, &mut lse_bytes).expect("a copy");
    (half::f16::from_ne_bytes(o_bytes).to_f32(), f32::from_ne_bytes(lse_bytes))
}

#[test]
fn take_their_share_however_large() {
    let alone = 16f32.ln();
    for (logit, o, lse) in [
        (f32::NEG_INFINITY, 1.0, alone),
        (f32::MIN, 1.0, alone),
        (alone, 0.5, 32f32.ln()),
        (88.0, 0.0, 88.0),
        (2e38, 0.0, 2e38),
        // To base 2, these logits overflow f32, so they count as the largest number.
        (3e38, 0.0, 2.3586e38),
        (f32::INFINITY, 0.0, 2.3586e38),
    ] {
        let (found_o, found_lse) = row_beside(logit);
        let near = |a: f32, b: f32| (a - b).abs() <= 1e-3 * b.abs().max(1.0);
        assert!(near(found_o, o) && near(found_lse, lse), "{logit}: {found_o}, {found_lse}; {o}, {lse}");
    }
    let (o, lse) = row_beside(f32::NAN);
    assert!(o.is_nan() && lse.is_nan(), "{o}, {lse}");
}
