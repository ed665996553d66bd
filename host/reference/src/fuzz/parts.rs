//! Parts of a request that faults change.
use ferroflash::DType;
use ferroflash::request::{AttentionRequest, KeysValues, Scratch, TensorView, Workspace};

/// Score factors that are not finite.
pub(super) const NOT_FINITE: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

/// Returns the other 16-bit type.
pub(super) fn other(dtype: DType) -> DType {
    if dtype == DType::F16 { DType::Bf16 } else { DType::F16 }
}

pub(super) fn all(f: &mut AttentionRequest<'_>, change: impl Fn(&mut TensorView)) -> bool {
    let [k, v] = kv(&mut f.kv);
    [&mut f.q, k, v, &mut f.o].into_iter().for_each(change);
    true
}

/// Returns K and V. Fuzzed requests have no cache.
pub(super) fn kv(kv: &mut KeysValues) -> [&mut TensorView; 2] {
    kv.tensors_mut().unwrap_or_else(|| unreachable!("a cache"))
}

pub(super) fn k<'f>(f: &'f mut AttentionRequest<'_>) -> &'f mut TensorView {
    let [k, _] = kv(&mut f.kv);
    k
}

pub(super) fn v<'f>(f: &'f mut AttentionRequest<'_>) -> &'f mut TensorView {
    let [_, v] = kv(&mut f.kv);
    v
}

pub(super) fn workspace<'f>(f: &'f mut AttentionRequest<'_>) -> Option<&'f mut Workspace> {
    match &mut f.scratch {
        Scratch::Memory { workspace, .. } => Some(workspace),
        Scratch::None | Scratch::Fastest => None,
    }
}
