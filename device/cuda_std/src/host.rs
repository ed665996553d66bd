//! Copies of device memory on the host. A function that loads from device memory reads these copies if it
//! runs on the host.
use std::cell::RefCell;
use std::vec::Vec;

/// A copy of device memory, and the address that the memory has on the device.
#[derive(Clone, Debug)]
pub struct Copied {
    /// The device address of the first byte.
    pub address: u64,
    /// The copied bytes.
    pub bytes: Vec<u8>,
}

std::thread_local! {
    static MEMORY: RefCell<Vec<Copied>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f`. Loads of this thread read `copies` until `f` returns or panics.
pub fn with_memory<R>(copies: Vec<Copied>, f: impl FnOnce() -> R) -> R {
    struct Restore(Vec<Copied>);
    impl Drop for Restore {
        fn drop(&mut self) {
            MEMORY.replace(core::mem::take(&mut self.0));
        }
    }
    let _restore = Restore(MEMORY.replace(copies));
    f()
}

/// Returns the copied bytes at a device address.
///
/// # Panics
/// Panics if no copy contains all of these bytes.
pub(crate) fn load<const N: usize>(address: u64) -> [u8; N] {
    MEMORY.with_borrow(|copies| {
        let found = copies.iter().find_map(|copy| {
            let at = usize::try_from(address.checked_sub(copy.address)?).ok()?;
            copy.bytes.get(at..at.checked_add(N)?)?.try_into().ok()
        });
        found.unwrap_or_else(|| {
            std::panic!(
                "a host function loads {N} bytes at device address {address:#x}, of which the host has no \
                 copy: pass a copy of this memory to cuda_std::host::with_memory"
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::{fma, unpack_f16};
    use crate::memory::{ld_global_b32, ld_global_nc_b8, ld_global_nc_b32};
    use std::{panic::catch_unwind, string::String, vec};

    #[test]
    fn loads_read_the_copy_at_its_device_address() {
        let copies = vec![Copied { address: 0x7000, bytes: vec![1, 0, 0, 0, 2, 3, 4, 5] }];
        // SAFETY: on the host, loads have no preconditions.
        let loaded = with_memory(copies, || unsafe {
            [ld_global_nc_b32(0x7000), ld_global_b32(0x7004), ld_global_nc_b8(0x7005)]
        });
        assert_eq!(loaded, [1, 0x0504_0302, 3]);
    }

    #[test]
    fn an_address_without_a_copy_is_named() {
        for address in [0x6fff, 0x7005, 0x7008, u64::MAX] {
            let load = || {
                let copies = vec![Copied { address: 0x7000, bytes: vec![0; 8] }];
                with_memory(copies, || super::load::<4>(address))
            };
            let error = catch_unwind(load).expect_err("no copy has these bytes");
            let words = error.downcast_ref::<String>().expect("words");
            assert!(words.contains(&std::format!("{address:#x}")), "{words}");
        }
        assert!(MEMORY.with_borrow(Vec::is_empty), "a panic leaves no copies");
    }

    #[test]
    fn arithmetic_has_the_instructions_values() {
        assert_eq!(unpack_f16(0xc000_3c00), [1.0, -2.0]);
        assert_eq!(unpack_f16(0x0001_7bff), [65504.0, 2f32.powi(-24)]);
        let [infinite, nan] = unpack_f16(0x7e00_fc00);
        assert!(infinite == f32::NEG_INFINITY && nan.is_nan());
        assert_eq!(fma(1.0 + f32::EPSILON, 1.0 - f32::EPSILON, -1.0), -f32::EPSILON * f32::EPSILON);
    }
}
