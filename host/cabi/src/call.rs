//! Code that all calls use. This file defines statuses, stores the text of the last error, and stops panics.
use ferroflash::Error;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `ferroflash_status_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Ok = 0,
    /// The request contradicts itself, or an argument is null.
    Invalid = 1,
    /// This library or this device does not support the request.
    Unsupported = 2,
    /// There is no driver or no device, or the driver refused a call.
    Driver = 3,
    /// A fault of this library.
    Internal = 4,
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Returns the text of this thread's last failed call.
#[unsafe(no_mangle)]
pub extern "C" fn ferroflash_last_error() -> *const c_char {
    // A thread that is ending no longer has an error text.
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Runs the body of a function and converts its result, or a panic, into a status.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Error>) -> Status {
    // After a panic, this function touches only the error's text, and replaces the whole text.
    let (status, words) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(error)) => (status(&error), error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
            (Status::Internal, format!("internal fault of ferroflash: {text}"))
        }
    };
    let words = CString::new(words.replace('\0', "\u{fffd}")).unwrap_or_default();
    let _ = LAST_ERROR.try_with(|last| last.replace(words));
    status
}

fn status(error: &Error) -> Status {
    match error {
        Error::Invalid { .. } => Status::Invalid,
        Error::Unsupported { .. } => Status::Unsupported,
        Error::Driver { .. } => Status::Driver,
        _ => Status::Internal,
    }
}

pub(crate) fn invalid(what: &'static str, value: impl ToString, expected: impl ToString) -> Error {
    Error::invalid(what, value, expected)
}

/// Borrows the value of a pointer argument.
///
/// # Safety
/// `pointer` is null, or points to a `T` that stays unchanged for `'a`.
pub(crate) unsafe fn borrow<'a, T>(what: &'static str, pointer: *const T) -> Result<&'a T, Error> {
    // SAFETY: the caller promises that the pointer is null or valid.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(what, "NULL", "it must not be null"))
}

/// Makes a value and stores its handle through a pointer argument. Stores null if `made` fails.
///
/// # Safety
/// `pointer` is null, or may be written.
pub(crate) unsafe fn create<T>(
    what: &'static str,
    pointer: *mut *mut T,
    made: impl FnOnce() -> Result<T, Error>,
) -> Status {
    call(|| {
        // SAFETY: the caller promises that the pointer is null or writable.
        unsafe { write(what, pointer, std::ptr::null_mut())? };
        let handle = Box::into_raw(Box::new(made()?));
        // SAFETY: the pointer is not null, because the first write succeeded.
        unsafe { write(what, pointer, handle) }
    })
}

/// Writes a value through a pointer argument.
///
/// # Safety
/// `pointer` is null, or may be written.
pub(crate) unsafe fn write<T>(what: &'static str, pointer: *mut T, value: T) -> Result<(), Error> {
    if pointer.is_null() {
        return Err(invalid(what, "NULL", "it must not be null"));
    }
    // SAFETY: the pointer is not null, and the caller promises that it may be written.
    unsafe { pointer.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn words() -> String {
        // SAFETY: the pointer is a string of this thread, which lives until the thread's next error.
        unsafe { CStr::from_ptr(ferroflash_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_a_status_and_words_are_of_one_thread() {
        assert_eq!((call(|| Ok(())), words().as_str()), (Status::Ok, ""));
        assert_eq!(call(|| panic!("at {}", 7)), Status::Internal);
        assert_eq!(words(), "internal fault of ferroflash: at 7");
        assert_eq!(call(|| Err(invalid("q", "a\0b", "it must not"))), Status::Invalid);
        assert_eq!(words(), "invalid q: a\u{fffd}b; it must not");
        assert_eq!(std::thread::spawn(words).join().expect("ends"), "");
    }
}
