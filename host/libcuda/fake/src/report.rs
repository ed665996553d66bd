//! Reports for tests, as lines of text. Strings are never freed, because tests are short.
use crate::api::Text;
use crate::state::{DEVICES, Kind, with};
use std::ffi::{CString, c_char};

fn text(lines: Vec<String>) -> *const c_char {
    CString::new(lines.join("\n")).unwrap_or_default().into_raw()
}

/// Returns the functions called since the previous report.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_calls() -> *const c_char {
    text(with(|state| std::mem::take(&mut state.calls)))
}

/// Returns the faults since the previous report.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_faults() -> *const c_char {
    text(with(|state| std::mem::take(&mut state.faults)))
}

/// Returns the objects that were not destroyed, and the primary contexts that are still retained.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_left() -> *const c_char {
    let left = with(|state| {
        let own = state.objects.values().filter(|object| !matches!(object.kind, Kind::Function { .. }));
        let objects = own.map(|object| format!("{} of context {:#x}", object.kind.name(), object.context));
        let held = (0..DEVICES).filter(|device| state.retained[*device as usize] > 0);
        let held = held.map(|device| format!("context of device {device}"));
        objects.chain(held).collect()
    });
    text(left)
}

/// Makes the next call of a function fail because there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_fail(function: Text) {
    with(|state| state.failing.insert(function.get()));
}

/// Sets the driver's version, for example 11040 for 11.4.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_version(version: i32) {
    with(|state| state.version = version);
}
