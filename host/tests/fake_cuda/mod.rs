//! The functions of the fake CUDA driver `host/libcuda/fake`, in a process that runs on it.
mod library;

use libloading::{Library, Symbol};
use library::{NAMES, folder};
use std::ffi::{CStr, CString, c_char, c_void};
use std::process::Command;

/// The environment variable that tells a test that its process has the fake driver.
const VARIABLE: &str = "FERROFLASH_TEST_IN_FAKE_CUDA";

/// Runs `test`, of this file, again in a separate process, in which `body` gets the fake driver.
pub fn in_fake_cuda(test: &str, body: impl FnOnce(&FakeCuda)) {
    if std::env::var_os(VARIABLE).is_some() {
        super::fake_ptx::with_ptx();
        return body(&FakeCuda::open());
    }
    let mut command = Command::new(std::env::current_exe().expect("this test has a path"));
    command.args([test, "--exact", "--nocapture"]).env(VARIABLE, "1").env("LD_LIBRARY_PATH", folder());
    let output = command.output().expect("it starts");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && text[0].contains("1 passed"), "{}{}", text[0], text[1]);
}

/// Access to the fake driver: its records, and calls that bypass the code under test.
pub struct FakeCuda {
    library: Library,
}

impl FakeCuda {
    fn open() -> Self {
        // SAFETY: the library has no initialisers, and the process has opened it before.
        let library = unsafe { Library::new(NAMES[0]) }.expect("the fake driver");
        FakeCuda { library }
    }

    fn function<F>(&self, name: &str) -> Symbol<'_, F> {
        // SAFETY: each caller below names a function and its signature.
        unsafe { self.library.get(name.as_bytes()) }.unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let ask = self.function::<extern "C" fn() -> *const c_char>(name);
        // SAFETY: the text is a string that is never freed.
        let text = unsafe { CStr::from_ptr(ask()) }.to_string_lossy();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the functions and launches that were called since the last query.
    pub fn calls(&self) -> Vec<String> {
        self.lines("fake_cuda_calls")
    }

    /// Returns the faults since the last query.
    pub fn faults(&self) -> Vec<String> {
        self.lines("fake_cuda_faults")
    }

    /// Returns the objects that were not destroyed, and the contexts that are still retained.
    pub fn left(&self) -> Vec<String> {
        self.lines("fake_cuda_left")
    }

    /// Makes the next call of a function fail.
    pub fn fail(&self, function: &str) {
        let name = CString::new(function).expect("no NUL");
        self.function::<extern "C" fn(*const c_char)>("fake_cuda_fail")(name.as_ptr());
    }

    /// Sets the driver's version, for example 11040 for 11.4.
    pub fn set_version(&self, version: i32) {
        self.function::<extern "C" fn(i32)>("fake_cuda_version")(version);
    }

    /// Returns the thread's context.
    pub fn current(&self) -> *mut c_void {
        let mut context = std::ptr::null_mut();
        self.function::<extern "C" fn(*mut *mut c_void) -> u32>("cuCtxGetCurrent")(&mut context);
        context
    }

    /// Makes a device's primary context current, until [`FakeCuda::leave`].
    pub fn enter_device(&self, device: i32) -> *mut c_void {
        let mut context = std::ptr::null_mut();
        let retain = "cuDevicePrimaryCtxRetain";
        self.function::<extern "C" fn(*mut *mut c_void, i32) -> u32>(retain)(&mut context, device);
        self.function::<extern "C" fn(*mut c_void) -> u32>("cuCtxSetCurrent")(context);
        context
    }

    /// Releases the context of [`FakeCuda::enter_device`] (device 1).
    pub fn leave(&self) {
        self.function::<extern "C" fn(*mut c_void) -> u32>("cuCtxSetCurrent")(std::ptr::null_mut());
        self.function::<extern "C" fn(i32) -> u32>("cuDevicePrimaryCtxRelease_v2")(1);
    }
}
