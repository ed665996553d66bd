//! Opens the library and looks up functions.
use libloading::Library;
use std::ffi::{CStr, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A result code; 0 is success.
pub type CUresult = c_uint;

/// The result of every function on a machine without a driver.
pub const CUDA_ERROR_STUB_LIBRARY: CUresult = 34;
/// The result of a function that the installed driver lacks.
pub const CUDA_ERROR_NOT_SUPPORTED: CUresult = 801;

#[cfg(windows)]
const NAMES: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// This machine has no CUDA driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no CUDA driver: {reason}; it comes with the NVIDIA display driver")]
pub struct NoDriver {
    reason: String,
}

/// Opens the driver library once. Later calls return the first result.
///
/// # Errors
/// Returns [`NoDriver`], with the loader's reason.
pub fn open() -> Result<(), &'static NoDriver> {
    library().map(|_| ())
}

fn library() -> Result<&'static Library, &'static NoDriver> {
    static LIBRARY: OnceLock<Result<Library, NoDriver>> = OnceLock::new();
    let open = || {
        let mut reason = String::new();
        for name in NAMES {
            // SAFETY: the driver's initialisers may run in any program, at any time.
            match unsafe { Library::new(name) } {
                Ok(library) => return Ok(library),
                Err(error) if reason.is_empty() => reason = error.to_string(),
                Err(_) => {}
            }
        }
        Err(NoDriver { reason })
    };
    LIBRARY.get_or_init(open).as_ref()
}

/// A function of the driver, looked up at its first call.
pub(crate) struct Symbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    pub const fn new(name: &'static CStr) -> Self {
        Symbol { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the function's address, or the result to return if the driver lacks it.
    #[inline]
    pub fn address(&self) -> Result<*mut c_void, CUresult> {
        // Every look-up finds the same address, and no other memory depends on it.
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.look_up() } else { Ok(address) }
    }

    #[cold]
    fn look_up(&self) -> Result<*mut c_void, CUresult> {
        let library = library().map_err(|_| CUDA_ERROR_STUB_LIBRARY)?;
        // SAFETY: this call only takes the address; the caller of the function knows its type.
        let address = unsafe { library.get::<*mut c_void>(self.name.to_bytes_with_nul()) };
        let address = address.map(|symbol| *symbol).map_err(|_| CUDA_ERROR_NOT_SUPPORTED)?;
        self.address.store(address, Ordering::Relaxed);
        Ok(address)
    }
}

/// Defines driver functions. Each function looks up its address at its first call. With the feature
/// `symbols`, each function is a symbol for the linker.
macro_rules! driver_functions {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),* $(,)?);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The preconditions of the CUDA driver API's function with this name hold.
        #[cfg_attr(feature = "symbols", unsafe(no_mangle))]
        #[allow(non_snake_case, reason = "the driver's name")]
        #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
        pub unsafe extern "system" fn $name($($arg: $type),*) -> $crate::library::CUresult {
            static SYMBOL: $crate::library::Symbol = $crate::library::Symbol::new(
                match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no NUL"),
                },
            );
            match SYMBOL.address() {
                Ok(address) => {
                    type Function = unsafe extern "system" fn($($type),*) -> $crate::library::CUresult;
                    // SAFETY: the driver's function of this name has this signature.
                    let function = unsafe { ::std::mem::transmute::<*mut _, Function>(address) };
                    // SAFETY: the caller promises the preconditions of the driver's function.
                    unsafe { function($($arg),*) }
                }
                Err(code) => code,
            }
        }
    )*};
}
pub(crate) use driver_functions;
