//! `atom`: atomic read-modify-write of one value in device or shared memory.
//!
//! Addresses are generic. [`Scope`] states for which threads the access is atomic. [`Order`] states
//! which of the thread's other memory accesses the operation orders (PTX ISA, "Memory Consistency
//! Model").
use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// The memory accesses that an atomic operation orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The operation orders no other access, which suffices for a counter.
    Relaxed,
    /// Later accesses stay after the operation, as when a thread takes a lock.
    Acquire,
    /// Earlier accesses are visible before the operation, as when a thread releases a lock.
    Release,
    /// The operation orders like [`Order::Acquire`] and [`Order::Release`] together.
    AcqRel,
}

/// The threads for which an access is atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All threads of this block: `.cta`.
    Block,
    /// All threads of this GPU: `.gpu`.
    Device,
    /// All threads of this GPU, other GPUs, and the host: `.sys`.
    System,
}

mod sealed {
    pub trait Sealed {}
}

/// Types that `atom` adds and exchanges: `u32`, `i32`, `u64`, `f32`.
pub trait Atomic: sealed::Sealed + Copy {
    #[doc(hidden)]
    unsafe fn add(address: *mut Self, x: Self, order: Order, scope: Scope) -> Self;
    #[doc(hidden)]
    unsafe fn exch(address: *mut Self, x: Self, order: Order, scope: Scope) -> Self;
    #[doc(hidden)]
    unsafe fn cas(address: *mut Self, old: Self, new: Self, order: Order, scope: Scope) -> Self;
}

/// Types that `atom` compares by size: `u32`, `i32`, `u64`.
pub trait AtomicOrd: Atomic {
    #[doc(hidden)]
    unsafe fn min(address: *mut Self, x: Self, order: Order, scope: Scope) -> Self;
    #[doc(hidden)]
    unsafe fn max(address: *mut Self, x: Self, order: Order, scope: Scope) -> Self;
}

/// `atom.add`: adds `x`, and returns the old value. A sum of `f32` is rounded to nearest.
///
/// # Safety
/// - `address` is valid for reads and writes of a `T`, and is a multiple of the size of `T`.
/// - While other threads may access the value, all threads use atomics of a scope that contains these
///   threads.
#[inline(always)]
pub unsafe fn atom_add<T: Atomic>(address: *mut T, x: T, order: Order, scope: Scope) -> T {
    // SAFETY: the caller keeps the preconditions.
    unsafe { T::add(address, x, order, scope) }
}

/// `atom.exch`: writes `x`, and returns the old value.
///
/// # Safety
/// The preconditions of [`atom_add`] must hold.
#[inline(always)]
pub unsafe fn atom_exch<T: Atomic>(address: *mut T, x: T, order: Order, scope: Scope) -> T {
    // SAFETY: the caller keeps the preconditions.
    unsafe { T::exch(address, x, order, scope) }
}

/// `atom.cas`: writes `new` if the bits of the old value equal the bits of `old`, and returns the old value.
///
/// # Safety
/// The preconditions of [`atom_add`] must hold.
#[inline(always)]
pub unsafe fn atom_cas<T: Atomic>(address: *mut T, old: T, new: T, order: Order, scope: Scope) -> T {
    // SAFETY: the caller keeps the preconditions.
    unsafe { T::cas(address, old, new, order, scope) }
}

/// `atom.min`: writes the smaller of `x` and the old value, and returns the old value.
///
/// # Safety
/// The preconditions of [`atom_add`] must hold.
#[inline(always)]
pub unsafe fn atom_min<T: AtomicOrd>(address: *mut T, x: T, order: Order, scope: Scope) -> T {
    // SAFETY: the caller keeps the preconditions.
    unsafe { T::min(address, x, order, scope) }
}

/// `atom.max`: writes the larger of `x` and the old value, and returns the old value.
///
/// # Safety
/// The preconditions of [`atom_add`] must hold.
#[inline(always)]
pub unsafe fn atom_max<T: AtomicOrd>(address: *mut T, x: T, order: Order, scope: Scope) -> T {
    // SAFETY: the caller keeps the preconditions.
    unsafe { T::max(address, x, order, scope) }
}

/// Expands to the instruction with every order and scope. Inlining removes all arms but one.
#[cfg(target_arch = "nvptx64")]
macro_rules! atom {
    ($operation:literal, $number:literal, $order:expr, $scope:expr,
     $class:ident: $address:expr $(, $x:expr)*) => {{
        macro_rules! form {
            ($form:literal) => {{
                let old;
                // SAFETY: the caller keeps the preconditions.
                unsafe {
                    asm!(atom!(@text $form, $operation, $number $(, $x)*),
                        out($class) old, in(reg64) $address $(, in($class) $x)*, options(nostack))
                };
                old
            }};
        }
        match ($order, $scope) {
            (Order::Relaxed, Scope::Block) => form!("relaxed.cta"),
            (Order::Relaxed, Scope::Device) => form!("relaxed.gpu"),
            (Order::Relaxed, Scope::System) => form!("relaxed.sys"),
            (Order::Acquire, Scope::Block) => form!("acquire.cta"),
            (Order::Acquire, Scope::Device) => form!("acquire.gpu"),
            (Order::Acquire, Scope::System) => form!("acquire.sys"),
            (Order::Release, Scope::Block) => form!("release.cta"),
            (Order::Release, Scope::Device) => form!("release.gpu"),
            (Order::Release, Scope::System) => form!("release.sys"),
            (Order::AcqRel, Scope::Block) => form!("acq_rel.cta"),
            (Order::AcqRel, Scope::Device) => form!("acq_rel.gpu"),
            (Order::AcqRel, Scope::System) => form!("acq_rel.sys"),
        }
    }};
    (@text $form:literal, $operation:literal, $number:literal, $x:expr) => {
        concat!("atom.", $form, ".", $operation, $number, " {}, [{}], {};")
    };
    (@text $form:literal, $operation:literal, $number:literal, $x:expr, $y:expr) => {
        concat!("atom.", $form, ".", $operation, $number, " {}, [{}], {}, {};")
    };
}

macro_rules! atomic {
    ($($type:ty: $class:ident, $number:literal, $bits:literal $(, $ordered:ident)?;)*) => {
        $(
            impl sealed::Sealed for $type {}
            impl Atomic for $type {
                #[inline(always)]
                #[gpu_only]
                unsafe fn add(address: *mut Self, x: Self, order: Order, scope: Scope) -> Self {
                    atom!("add.", $number, order, scope, $class: address, x)
                }
                #[inline(always)]
                #[gpu_only]
                unsafe fn exch(address: *mut Self, x: Self, order: Order, scope: Scope) -> Self {
                    atom!("exch.", $bits, order, scope, $class: address, x)
                }
                #[inline(always)]
                #[gpu_only]
                unsafe fn cas(address: *mut Self, old: Self, new: Self, order: Order, scope: Scope) -> Self {
                    atom!("cas.", $bits, order, scope, $class: address, old, new)
                }
            }
            $(
                impl $ordered for $type {
                    #[inline(always)]
                    #[gpu_only]
                    unsafe fn min(address: *mut Self, x: Self, order: Order, scope: Scope) -> Self {
                        atom!("min.", $number, order, scope, $class: address, x)
                    }
                    #[inline(always)]
                    #[gpu_only]
                    unsafe fn max(address: *mut Self, x: Self, order: Order, scope: Scope) -> Self {
                        atom!("max.", $number, order, scope, $class: address, x)
                    }
                }
            )?
        )*
    };
}
atomic! {
    u32: reg32, "u32", "b32", AtomicOrd;
    i32: reg32, "s32", "b32", AtomicOrd;
    u64: reg64, "u64", "b64", AtomicOrd;
    f32: reg32, "f32", "b32";
}

/// `atom.inc`: adds 1, or writes 0 if the old value is at least `last`; returns the old value.
///
/// # Safety
/// The preconditions of [`atom_add`] must hold.
#[inline(always)]
#[gpu_only]
pub unsafe fn atom_inc(address: *mut u32, last: u32, order: Order, scope: Scope) -> u32 {
    atom!("inc.", "u32", order, scope, reg32: address, last)
}

/// `ld.acquire.gpu.global.b32`: loads a word. After the load, this thread sees everything that the thread
/// which released the value had seen.
///
/// # Safety
/// - `address` is a global address and a multiple of 4, and 4 bytes may be read there. While other threads
///   may write them, all threads use atomics.
#[inline(always)]
#[gpu_only]
pub unsafe fn ld_acquire(address: u64) -> u32 {
    let x;
    // SAFETY: the caller keeps the preconditions.
    unsafe { asm!("ld.acquire.gpu.global.b32 {}, [{}];", out(reg32) x, in(reg64) address, options(nostack)) }
    x
}

/// `red.release.gpu.global.add.u32`: adds to a word. A thread that acquires the sum sees everything that this
/// thread has seen.
///
/// # Safety
/// - `address` is a global address and a multiple of 4, and 4 bytes may be written there. While other threads
///   may access them, all threads use atomics.
#[inline(always)]
#[gpu_only]
pub unsafe fn red_release_add(address: u64, x: u32) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("red.release.gpu.global.add.u32 [{}], {};", in(reg64) address, in(reg32) x, options(nostack))
    }
}

/// `red.relaxed.gpu.global.add.v4.f32` (sm_90): adds four f32 to global memory, each atomically.
///
/// # Safety
/// - `address` is a global address and a multiple of 16, and 16 bytes may be written there. While other
///   threads may access them, all threads use atomics.
#[inline(always)]
#[gpu_only]
pub unsafe fn red_add_v4_f32(address: u64, x: [f32; 4]) {
    // SAFETY: the caller keeps the preconditions.
    unsafe {
        asm!("red.relaxed.gpu.global.add.v4.f32 [{}], {{{}, {}, {}, {}}};", in(reg64) address,
            in(reg32) x[0], in(reg32) x[1], in(reg32) x[2], in(reg32) x[3], options(nostack))
    }
}
