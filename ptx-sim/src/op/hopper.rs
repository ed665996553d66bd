//! Instructions of Hopper: products of warpgroups, bulk copies, proxies.

use super::{Addr, AtomicOp, AtomicType, WgmmaElement};
use crate::regs::R;

/// The `wgmma` instructions.
#[derive(Clone, Debug)]
pub(crate) enum Wgmma {
    Fence,
    Commit,
    /// Waits until only the youngest groups, at most this number, are in flight.
    Wait(u32),
    Product(Product),
}

/// `wgmma.mma_async` with 64 rows, a depth of 32 bytes, and accumulators in f32.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub element: WgmmaElement,
    pub columns: usize,
    /// The accumulator registers. A thread holds four of every eight columns.
    pub d: Vec<R>,
    pub a: Operand,
    pub b: Operand,
    /// The predicate that states whether the product adds to D.
    pub accumulates: R,
    /// Whether A or B is negated, so that the product is subtracted.
    pub negated: bool,
}

/// The place of an operand of a product.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// The operand is in four registers, as the fragments of `mma`.
    Registers(Vec<R>),
    /// The operand is in shared memory. This row holds its descriptor. If `across`, neighbouring elements
    /// have the same depth (MN-major); otherwise they have the same row or column (K-major).
    Shared { descriptor: R, across: bool },
}

/// The `cp.async.bulk` instructions.
#[derive(Clone, Debug)]
pub(crate) enum Bulk {
    /// Copies from device to shared memory. The bytes count down the mbarrier.
    Load {
        to: Addr,
        from: Region,
        mbar: Addr,
    },
    /// Copies from shared to device memory, in a bulk group.
    Store {
        from: Addr,
        to: Region,
        reduction: Option<Reduction>,
    },
    Commit,
    /// Waits until all groups except for the last `keep` have read their sources. If `read` is false, waits
    /// until these groups have also written.
    Wait {
        keep: u32,
        read: bool,
    },
    /// Prefetches a tensor map, which must lie at the address.
    Map {
        map: Addr,
    },
    /// Prefetches the source of a copy.
    Prefetch {
        from: Region,
    },
}

/// A bulk store that combines its elements with elements in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reduction {
    pub op: AtomicOp,
    /// The type of the elements; `None` means that the tensor map contains the type.
    pub ty: Option<AtomicType>,
}

/// The device memory that a bulk copy reads or writes.
#[derive(Clone, Debug)]
pub(crate) enum Region {
    /// The box of a tensor map at these coordinates.
    Tensor {
        map: Addr,
        at: Vec<R>,
    },
    Bytes {
        addr: Addr,
        bytes: R,
    },
}

/// A fence between proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proxy {
    /// Makes the generic proxy's writes to shared memory visible to the asynchronous proxy.
    Async,
    /// Makes initialisations of mbarriers visible to the asynchronous proxy.
    Mbarriers,
}
