//! Accessors with which tests' tables change requests, and the parameters of portable kernels.
use ferroflash::Launch;
use ferroflash::request::*;
use spec::{BwdDkDvParams, BwdHopperParams, FwdParams};

/// Returns K of a request on tensors.
pub fn k<'f>(f: &'f mut AttentionRequest<'_>) -> &'f mut TensorView {
    let [k, _] = f.kv.tensors_mut().expect("tensors");
    k
}

/// Returns V of a request on tensors.
pub fn v<'f>(f: &'f mut AttentionRequest<'_>) -> &'f mut TensorView {
    let [_, v] = f.kv.tensors_mut().expect("tensors");
    v
}

/// Returns the varlen queries of a request.
pub fn queries<'f>(f: &'f mut AttentionRequest<'_>) -> &'f mut VarlenQueries {
    match &mut f.queries {
        Queries::Varlen(queries) => queries,
        _ => panic!("varlen queries"),
    }
}

/// Returns the varlen keys of a request.
pub fn keys<'f>(f: &'f mut AttentionRequest<'_>) -> &'f mut VarlenKeys {
    match &mut f.kv {
        KeysValues::Varlen { keys, .. } => keys,
        _ => panic!("varlen keys"),
    }
}

/// Returns the cache of a request.
pub fn cache<'f>(f: &'f mut AttentionRequest<'_>) -> &'f mut KvCache {
    match &mut f.kv {
        KeysValues::Cache(cache) => cache,
        _ => panic!("a cache"),
    }
}

/// Returns the parameters of a portable kernel with work tiles. The parameters of all such kernels begin with
/// these.
pub fn forward_params(launch: &Launch) -> FwdParams {
    assert!(launch.contract().param_align < 64);
    main_params(launch)
}

/// Parameters of kernels.
pub trait Params: Copy {}
impl Params for FwdParams {}
impl Params for BwdDkDvParams {}
impl Params for BwdHopperParams {}

/// Returns the first parameters of the kernel that names the launch.
pub fn main_params<P: Params>(launch: &Launch) -> P {
    let bytes = launch.params();
    assert!(bytes.len() >= size_of::<P>());
    // SAFETY: the bytes have at least the size of the parameters, and every byte that a host writes has a
    // value.
    unsafe { bytes.as_ptr().cast::<P>().read_unaligned() }
}
