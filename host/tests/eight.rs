//! Tests the scales of e4m3 KV caches in the parameters of prefill and mixed batches.
use crate::fake::FakeDriver;
use crate::fake_ptx::with_ptx;
use crate::on_cache::{FAR, Shape, decode};
use crate::parts::cache;
use core::mem::{offset_of, size_of};
use ferroflash::{request::*, *};
use spec::{HopperPagedParams, ManyParams, PagedParams, PerHead};

/// 8 sequences of 512 queries on at most 4096 keys.
const DENSE: Shape = Shape {
    dtype: DType::F16,
    batch: 8,
    queries: 512,
    varlen: false,
    heads: [32, 8],
    head_dim: 128,
    page: Some(16),
    max_k: 4096,
};
/// Varlen queries; with 1000 rows, a mixed batch.
const VARLEN: Shape = Shape { varlen: true, ..DENSE };

/// A causal request on a cache of e4m3, with scales.
fn request(shape: Shape) -> AttentionRequest<'static> {
    let mut r = decode(shape).mask(Mask::Causal);
    if shape.varlen {
        r = r.scratch(Scratch::workspace(20 * FAR, 1 << 20));
        for view in [&mut r.q, &mut r.o] {
            view.shape[1] = view.shape[1].min(1000);
        }
    }
    let pages = &mut cache(&mut r).pages;
    (pages.keys.dtype, pages.values.dtype) = (DType::E4m3, DType::E4m3);
    let per_head = KvScale::Device { address: 8 * FAR, elements: 64, strides: [8, 1] };
    *pages = pages.scales(per_head, KvScale::Value(0.5));
    r
}

/// Both kernels of a launch get the scales of keys, per sequence and head, and of values, one number.
#[test]
fn scales_are_in_the_parameters() -> Result<(), Error> {
    with_ptx();
    let paged = offset_of!(PagedParams<[PerHead; 2]>, scales);
    let many = offset_of!(ManyParams<PagedParams<[PerHead; 2]>>, paged) + paged;
    let hopper = offset_of!(HopperPagedParams<[PerHead; 2]>, scales);
    for (name, shape, size, at) in [
        ("l4", DENSE, size_of::<PagedParams<[PerHead; 2]>>(), paged),
        ("l4", VARLEN, size_of::<ManyParams<PagedParams<[PerHead; 2]>>>(), many),
        ("h200", DENSE, size_of::<HopperPagedParams<[PerHead; 2]>>(), hopper),
        ("h200", VARLEN, size_of::<HopperPagedParams<[PerHead; 2]>>(), hopper),
    ] {
        let (attention, request) = (Attention::new(FakeDriver::new(name)), request(shape));
        let plan = attention.plan(&request)?;
        attention.load(&plan)?;
        // SAFETY: nothing runs.
        unsafe { attention.launch(&plan, &request, &7) }?;
        let launches = attention.driver().launches();
        let params = &launches.last().expect("a launch").params;
        assert_eq!(params.len(), size);
        let number = |at: usize| u64::from_ne_bytes(params[at..][..8].try_into().expect("8 bytes"));
        let scales: Vec<_> = (0..8).map(|i| number(at + 8 * i)).collect();
        assert_eq!(scales, [8 * FAR, 32, 4, 0, 0, 0, 0, 0.5f32.to_bits().into()]);
    }
    Ok(())
}
