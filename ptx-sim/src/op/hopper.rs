//! Instructions of Hopper: products of warpgroups, bulk copies, proxies.

use super::{Addr, AtomicOp, AtomicType, Element};
use crate::regs::R;

/// `wgmma`.
#[derive(Clone, Debug)]
pub(crate) enum Wgmma {
    Fence,
    Commit,
    /// Waits until at most this number of the youngest groups is in flight.
    Wait(u32),
    Product(Product),
}

/// `wgmma.mma_async` of 64 rows and a depth of 16, with f32 accumulators.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub element: Element,
    pub columns: usize,
    /// The accumulator registers: a thread holds four of every eight columns.
    pub d: Vec<R>,
    pub a: Operand,
    pub b: Operand,
    /// Predicate: whether the product adds to D.
    pub accumulates: R,
    /// Whether A or B is negated, so that the product is subtracted.
    pub negated: bool,
}

/// The place of an operand of a product.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    /// Four registers, as the fragments of `mma`.
    Registers(Vec<R>),
    /// In shared memory. This row holds the descriptor. `across`: neighbouring elements have equal depth
    /// (MN-major); otherwise they have an equal row or column (K-major).
    Shared { descriptor: R, across: bool },
}

/// `cp.async.bulk`.
#[derive(Clone, Debug)]
pub(crate) enum Bulk {
    /// From device to shared memory; the bytes count down the mbarrier.
    Load {
        to: Addr,
        from: Region,
        mbar: Addr,
    },
    /// From shared to device memory, in a bulk group.
    Store {
        from: Addr,
        to: Region,
        reduction: Option<Reduction>,
    },
    Commit,
    /// Waits until all groups but the last `keep` have read their sources, and, without `read`, have also
    /// written.
    Wait {
        keep: u32,
        read: bool,
    },
    /// Prefetch of a tensor map; the address must be that of a tensor map.
    Map {
        map: Addr,
    },
    /// Prefetch of a copy's source.
    Prefetch {
        from: Region,
    },
}

/// A bulk store that combines its elements with elements in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reduction {
    pub op: AtomicOp,
    /// Type of the elements; `None`: the tensor map has the type.
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
