//! Errors of the driver.
use crate::library::{CUDA_ERROR_STUB_LIBRARY, CUresult, open};
use crate::{cuGetErrorName, cuGetErrorString};
use std::ffi::{CStr, c_char};

/// A function of the driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} ({code}): {text}")]
pub struct CudaError {
    /// The driver's code.
    pub code: CUresult,
    /// The name of the code, for example `CUDA_ERROR_INVALID_VALUE`.
    pub name: String,
    /// The driver's explanation.
    pub text: String,
}

/// Converts a driver function's result into a `Result`.
///
/// # Errors
/// Returns [`CudaError`] with the code and the driver's description.
pub fn check(code: CUresult) -> Result<(), CudaError> {
    if code == 0 { Ok(()) } else { Err(error(code)) }
}

#[cold]
fn error(code: CUresult) -> CudaError {
    if let (CUDA_ERROR_STUB_LIBRARY, Err(missing)) = (code, open()) {
        return CudaError { code, name: "CUDA_ERROR_STUB_LIBRARY".into(), text: missing.to_string() };
    }
    type Ask = unsafe extern "system" fn(CUresult, *mut *const c_char) -> CUresult;
    let words = |ask: Ask, otherwise: &str| {
        let mut text = std::ptr::null();
        // SAFETY: `text` may be written; the driver's strings are static.
        let known = unsafe { ask(code, &mut text) } == 0 && !text.is_null();
        // SAFETY: `text` may be written; the driver's strings are static.
        if known { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() } else { otherwise.into() }
    };
    CudaError {
        code,
        name: words(cuGetErrorName, "unknown error"),
        text: words(cuGetErrorString, "no explanation"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_it_says_so() {
        // SAFETY: `cuInit` may be called at any time.
        let result = check(unsafe { crate::cuInit(0) });
        if open().is_ok() {
            return assert_ne!(result.map_err(|e| e.code), Err(CUDA_ERROR_STUB_LIBRARY));
        }
        let error = result.expect_err("there is no driver");
        assert_eq!(error.code, CUDA_ERROR_STUB_LIBRARY);
        assert!(error.text.starts_with("no CUDA driver: libcuda.so.1"), "{error}");
    }
}
