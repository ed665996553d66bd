//! Valid problems to which one fault was added.
use super::{Fuzz, below, pick};
use crate::inputs::Random;
use crate::work::{Binder, LaunchOptions};
use ferroflash::kernels::ATTENTION;
use ferroflash::plan::AnyRequest;
use ferroflash::request::{AttentionRequest, Region, Scratch, TensorView};
use ferroflash::{Capabilities, DType, Error};

/// Score factors that are not finite.
const NOT_FINITE: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

/// Returns the other 16-bit type.
fn other(dtype: DType) -> DType {
    if dtype == DType::F16 { DType::Bf16 } else { DType::F16 }
}

/// Changes Q, K, V and O.
fn all(f: &mut AttentionRequest<'_>, change: impl Fn(&mut TensorView)) -> bool {
    kv(f).into_iter().for_each(&change);
    [&mut f.q, &mut f.o].into_iter().for_each(change);
    true
}

/// Returns K and V. Fuzzed requests have no cache.
fn kv<'f>(f: &'f mut AttentionRequest<'_>) -> [&'f mut TensorView; 2] {
    f.kv.tensors_mut().unwrap_or_else(|| unreachable!("a cache"))
}

fn workspace<'f>(f: &'f mut AttentionRequest<'_>) -> Option<&'f mut Region> {
    match &mut f.scratch {
        Scratch::Memory { workspace, .. } => Some(workspace),
        _ => None,
    }
}

/// One fault of a request, and the field that the error must name.
struct Fault {
    /// Name of the fault.
    name: &'static str,
    /// Adds the fault to a request; returns `false` if the request cannot have it.
    spoil: fn(&mut AttentionRequest<'_>, &mut Random) -> bool,
    /// The expected start of [`Error::Invalid::what`] or [`Error::Unsupported::feature`].
    names: &'static str,
}

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    Fault { name: "misaligned address", names: "q.address",
        spoil: |f, r| { f.q.address += 2 * (1 + below(r, 7) as u64); true } },
    Fault { name: "no address", names: "k.address", spoil: |f, _| { kv(f)[0].address = 0; true } },
    Fault { name: "another type", names: "v.dtype",
        spoil: |f, _| { kv(f)[1].dtype = other(kv(f)[1].dtype); true } },
    Fault { name: "more values than keys", names: "v.shape",
        spoil: |f, r| { kv(f)[1].shape[1] += 1 + below(r, 99); true } },
    Fault { name: "output of another length", names: "o.shape",
        spoil: |f, r| { f.o.shape[1] += 1 + below(r, 99); true } },
    Fault { name: "odd head dim", names: "head_dim",
        spoil: |f, r| { let odd = 1 + below(r, 7); all(f, |t| t.shape[3] += odd) } },
    Fault { name: "large head dim", names: "head_dim",
        spoil: |f, r| { let large = 520 + 8 * below(r, 99); all(f, |t| t.shape[3] = large) } },
    Fault { name: "no heads of keys", names: "heads_k",
        spoil: |f, _| { kv(f).into_iter().for_each(|t| t.shape[2] = 0); true } },
    Fault { name: "heads that do not divide", names: "heads_q",
        spoil: |f, r| {
            let more = f.q.shape[2] + 1 + below(r, 9);
            kv(f).into_iter().for_each(|t| t.shape[2] = more);
            true
        } },
    Fault { name: "scale not finite", names: "scale",
        spoil: |f, r| { f.scores.scale = Some(pick(r, &NOT_FINITE)); true } },
    Fault { name: "scale not above 0", names: "scale",
        spoil: |f, r| { f.scores.scale = Some(-(below(r, 9) as f32)); true } },
    Fault { name: "softcap not above 0", names: "softcap",
        spoil: |f, r| { f.scores.softcap = Some(pick(r, &[f32::NAN, -1.0, f32::INFINITY])); true } },
    Fault { name: "columns apart", names: "k.strides",
        spoil: |f, r| { kv(f)[0].strides[3] = 2 + below(r, 9) as i64; true } },
    Fault { name: "misaligned rows", names: "k.strides",
        spoil: |f, r| { kv(f)[0].strides[1] += 1 + below(r, 7) as i64; kv(f)[0].shape[1] > 1 } },
    Fault { name: "backward rows", names: "v.strides",
        spoil: |f, _| { kv(f)[1].strides[1] = -kv(f)[1].strides[1]; kv(f)[1].shape[1] > 1 } },
    Fault { name: "buffer too small", names: "q.elements",
        spoil: |f, r| { f.q.elements = below(r, f.q.shape[3]) as u64; true } },
    Fault { name: "output on an input", names: "o.address",
        spoil: |f, _| { f.o.address = kv(f)[1].address; true } },
    Fault { name: "output repeats itself", names: "o.strides",
        spoil: |f, _| { f.o.strides[1] = 0; f.o.shape[1] > 1 } },
    Fault { name: "log-sum-exp misaligned", names: "lse.address",
        spoil: |f, r| {
            let off = 1 + below(r, 3) as u64;
            f.lse.as_mut().is_some_and(|lse| { lse.address += off; true })
        } },
    Fault { name: "log-sum-exp of another shape", names: "lse.shape",
        spoil: |f, _| f.lse.as_mut().is_some_and(|lse| { lse.shape[1] += 1; true }) },
    Fault { name: "log-sum-exp too small", names: "lse.elements",
        spoil: |f, _| f.lse.as_mut().is_some_and(|lse| { lse.elements -= 1; true }) },
    Fault { name: "slopes misaligned", names: "alibi.address",
        spoil: |f, r| {
            let off = 1 + below(r, 3) as u64;
            f.scores.alibi.as_mut().is_some_and(|slopes| { slopes.address += off; true })
        } },
    Fault { name: "slopes too few", names: "alibi.elements",
        spoil: |f, _| f.scores.alibi.as_mut().is_some_and(|slopes| { slopes.elements = 0; true }) },
    Fault { name: "workspace misaligned", names: "workspace.address",
        spoil: |f, r| {
            let off = 1 + below(r, 15) as u64;
            workspace(f).is_some_and(|w| { w.address += off; true })
        } },
    Fault { name: "workspace on the output", names: "workspace.address",
        spoil: |f, _| {
            let o = f.o.address;
            workspace(f).is_some_and(|w| { w.address = o; true })
        } },
    Fault { name: "workspace too small for the kernel asked for", names: "workspace.bytes", spoil: |f, r| {
        let asked = f.config.is_some();
        workspace(f).is_some_and(|w| { w.bytes = below(r, w.bytes as usize) as u64; asked })
    } },
    Fault { name: "unknown kernel", names: "config",
        spoil: |f, _| { f.config = Some("fwd_f16_d64_full_80x64"); true } },
    Fault { name: "a tiling that no kernel can have", names: "fa_s512/80x64w8",
        spoil: |f, _| { f.config = Some("fa_s512/80x64w8"); true } },
    Fault { name: "a kernel of another type", names: "config", spoil: |f, _| {
        f.config = ATTENTION.iter().find(|e| e.dtype != f.q.dtype).map(|e| e.contract.symbol);
        f.config.is_some()
    } },
];

/// Adds a fault to the request of `fuzz`, and plans it. `seed` picks the fault.
///
/// # Errors
/// Returns a description if the planner accepted the request or refused it for another reason.
pub fn refused(fuzz: &Fuzz, seed: u64, capabilities: &Capabilities) -> Result<&'static str, String> {
    let random = &mut Random::new(seed);
    let options = LaunchOptions { config: fuzz.config, ..LaunchOptions::default() };
    let request = fuzz.work.request(&mut Binder::at(None, None), options);
    let AnyRequest::Attention(mut good) = request else {
        return Err(format!("{fuzz}: faults are for attention"));
    };
    let planned = ferroflash::plan(&good, capabilities);
    let bytes = planned.map_err(|e| format!("{fuzz}: {e}"))?.scratch_bytes().workspace;
    good.scratch = if bytes > 0 { Scratch::workspace(6 << 40, bytes) } else { Scratch::None };
    ferroflash::plan(&good, capabilities).map_err(|e| format!("{fuzz}: refused as it was: {e}"))?;
    let (fault, bad) = loop {
        let (fault, mut bad) = (&FAULTS[below(random, FAULTS.len())], good);
        if (fault.spoil)(&mut bad, random) {
            break (fault, bad);
        }
    };
    let named = match ferroflash::plan(&bad, capabilities) {
        Ok(_) => return Err(format!("{fuzz}: accepted although {}", fault.name)),
        Err(Error::Invalid { what, .. }) => what.to_owned(),
        Err(Error::Unsupported { feature, .. }) => feature,
        Err(other) => return Err(format!("{fuzz}: {}: {other}", fault.name)),
    };
    match named.starts_with(fault.names) {
        true => Ok(fault.name),
        false => Err(format!("{fuzz}: {}: should name {}, names {named}", fault.name, fault.names)),
    }
}

/// Returns the names of all faults that [`refused`] can pick.
pub fn faults() -> impl Iterator<Item = &'static str> {
    FAULTS.iter().map(|fault| fault.name)
}
