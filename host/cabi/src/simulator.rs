//! Contexts on a simulated card, and copies to and from its memory.
use crate::args::name;
use crate::call::{Status, borrow, call, create, invalid, write};
use crate::card::Simulator;
use crate::context::Context;
use std::ffi::{c_char, c_void};

/// Creates a context on a simulated card.
///
/// # Safety
/// `profile` is null or a string. `context` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_context_create_simulator(
    profile: *const c_char,
    context: *mut *mut Context,
) -> Status {
    let made = || {
        // SAFETY: the caller promises a string or null.
        let profile = unsafe { name("profile", profile)? }.unwrap_or("NULL");
        Simulator::new(profile).map(Context::simulated)
    };
    // SAFETY: the caller promises that `context` may be written.
    unsafe { create("context", context, made) }
}

/// Allocates memory of a simulated card.
///
/// # Safety
/// `context` is null or a live context. `address` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_simulator_allocate(
    context: *const Context,
    bytes: u64,
    address: *mut u64,
) -> Status {
    call(|| {
        // SAFETY: the caller promises that the context is null or live.
        let allocated = unsafe { borrow("context", context)? }.simulator()?.allocate(size(bytes)?)?;
        // SAFETY: the caller promises that `address` is null or may be written.
        unsafe { write("address", address, allocated) }
    })
}

/// Frees memory of a simulated card.
///
/// # Safety
/// `context` is null or a live context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_simulator_free(context: *const Context, address: u64) -> Status {
    // SAFETY: the caller promises that the context is null or live.
    call(|| unsafe { borrow("context", context)? }.simulator()?.free(address))
}

/// Copies the caller's memory to a simulated card.
///
/// # Safety
/// `context` is null or a live context. `data` is null or points to `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_simulator_write(
    context: *const Context,
    address: u64,
    data: *const c_void,
    bytes: u64,
) -> Status {
    call(|| {
        // SAFETY: the caller promises that both are null or valid.
        let (context, first) = unsafe { (borrow("context", context)?, borrow("data", data.cast::<u8>())?) };
        // SAFETY: the pointer is not null, and the caller promises this number of bytes.
        let data = unsafe { std::slice::from_raw_parts(first, size(bytes)?) };
        context.simulator()?.write(address, data)
    })
}

/// Copies memory of a simulated card to the caller's memory.
///
/// # Safety
/// `context` is null or a live context. `data` is null or points to `bytes` bytes that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_simulator_read(
    context: *const Context,
    address: u64,
    data: *mut c_void,
    bytes: u64,
) -> Status {
    call(|| {
        // SAFETY: the caller promises that the context is null or live.
        let context = unsafe { borrow("context", context)? };
        if data.is_null() {
            return Err(invalid("data", "NULL", "it must not be null"));
        }
        // SAFETY: the pointer is not null, and the caller promises this number of bytes.
        let data = unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), size(bytes)?) };
        context.simulator()?.read(address, data)
    })
}

/// Returns a number of bytes that a slice may have.
fn size(bytes: u64) -> Result<usize, ferroflash::Error> {
    let size = usize::try_from(bytes).ok().filter(|size| isize::try_from(*size).is_ok());
    size.ok_or_else(|| invalid("bytes", bytes, "it must fit this machine's memory"))
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::call::{Status::Ok as Fine, ferroflash_last_error};
    use crate::context::ferroflash_context_destroy;
    use crate::examples::tensors;
    use crate::requests::ferroflash_attention;
    use crate::structs::AttentionArgs;
    use std::ffi::CStr;

    #[test]
    fn a_launch_reads_and_writes_the_cards_memory() {
        const BYTES: usize = 2 * 64 * 2;
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointers are valid, and the struct describes the allocated memory.
        unsafe {
            assert_eq!(ferroflash_context_create_simulator(c"l4".as_ptr(), &mut context), Fine);
            let ones = [0x00u8, 0x3c].repeat(BYTES / 2);
            let [q, k, v, o] = [(); 4].map(|()| {
                let mut address = 0;
                assert_eq!(ferroflash_simulator_allocate(context, BYTES as u64, &mut address), Fine);
                address
            });
            for address in [q, k, v] {
                let data = ones.as_ptr().cast();
                assert_eq!(ferroflash_simulator_write(context, address, data, BYTES as u64), Fine);
            }
            let strides = [128, 64, 64, 1];
            let args = AttentionArgs {
                size: size_of::<AttentionArgs>() as u64,
                q: q as *const c_void,
                k: k as *const c_void,
                v: v as *const c_void,
                o: o as *mut c_void,
                q_strides: strides,
                k_strides: strides,
                v_strides: strides,
                o_strides: strides,
                batch: 1,
                seqlen_q: 2,
                seqlen_k: 2,
                heads_q: 1,
                heads_k: 1,
                softcap: 0.0,
                ..tensors()
            };
            assert_eq!(ferroflash_attention(context, &args, std::ptr::null_mut()), Fine);
            let mut found = vec![0u8; BYTES];
            assert_eq!(ferroflash_simulator_read(context, o, found.as_mut_ptr().cast(), BYTES as u64), Fine);
            assert_eq!(found, ones);
            // The checks refuse to read freed memory, and the next launch begins without the finding.
            assert_eq!(ferroflash_simulator_free(context, v), Fine);
            assert_ne!(ferroflash_attention(context, &args, std::ptr::null_mut()), Fine);
            let words = CStr::from_ptr(ferroflash_last_error()).to_string_lossy();
            assert!(words.contains("simulated launch"), "{words}");
            assert_ne!(ferroflash_simulator_free(context, v), Fine);
            assert_ne!(ferroflash_simulator_write(context, o, ones.as_ptr().cast(), 1 << 63), Fine);
            assert_eq!(
                ferroflash_attention(context, &AttentionArgs { v: args.k, ..args }, std::ptr::null_mut()),
                Fine
            );
            ferroflash_context_destroy(context);
        }
    }
}
