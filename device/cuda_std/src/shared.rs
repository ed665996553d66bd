//! Static shared memory: [`shared!`](crate::shared!) declares an array or a value. Each block has its own
//! copy.

/// Declares static shared memory. Each block has its own copy, which is uninitialised when the block starts.
///
/// `shared!(static NAME: T);` makes a constant `NAME` with two safe functions. `NAME.as_mut_ptr()` returns an
/// ordinary `*mut T`. `NAME.address()` returns the address in the shared window, for functions of this crate
/// that take a `u32`. Reading and writing through either address is `unsafe`, because only barriers order the
/// accesses of threads. `T` must be `Copy`, because no code drops it. A kernel can have up to 48 KiB of
/// static shared memory. The name becomes a symbol of the PTX, so it must be unique in the crate's PTX.
///
/// On the GPU, the calling crate needs `#![feature(asm_experimental_arch)]`, which `CudaBuilder` sets.
///
/// ```
/// # mod kernels {
/// cuda_std::shared!(static PARTIAL: [f32; 8]);
///
/// # #[cfg(target_arch = "nvptx64")]
/// # unsafe fn kernel(warp: usize, sum: f32) {
/// let partial = PARTIAL.as_mut_ptr().cast::<f32>();
/// // SAFETY: each warp writes its own element; the barrier comes before any thread reads.
/// unsafe {
///     *partial.add(warp) = sum;
///     cuda_std::barrier::sync_threads();
/// }
/// # }
/// # }
/// ```
#[macro_export]
macro_rules! shared {
    ($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty $(;)?) => {
        #[allow(non_camel_case_types)]
        $(#[$attribute])*
        #[derive(Clone, Copy)]
        $visibility struct $name;

        #[cfg(target_arch = "nvptx64")]
        ::core::arch::global_asm!(
            concat!(".shared .align {} .b8 shared_", stringify!($name), "[{}];"),
            const ::core::mem::align_of::<$type>(),
            const ::core::mem::size_of::<$type>(),
        );

        #[allow(dead_code)]
        impl $name {
            /// The address of the value in the shared window.
            #[inline(always)]
            $visibility fn address(self) -> u32 {
                const fn is_copy<T: Copy>() {}
                const { is_copy::<$type>() }
                #[cfg(target_arch = "nvptx64")]
                {
                    let address: u32;
                    // SAFETY: the instruction only takes an address.
                    unsafe {
                        ::core::arch::asm!(
                            concat!("mov.u32 {}, shared_", stringify!($name), ";"),
                            out(reg32) address,
                            options(pure, nomem, nostack)
                        )
                    }
                    address
                }
                #[cfg(not(target_arch = "nvptx64"))]
                panic!("shared memory exists on the GPU only")
            }

            /// The generic address of the value.
            #[inline(always)]
            $visibility fn as_mut_ptr(self) -> *mut $type {
                $crate::memory::generic(self.address()) as *mut $type
            }
        }
    };
}
