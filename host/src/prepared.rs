//! A kernel that the caller picks by type.
use crate::{Driver, Error, image};
use spec::Entry;
use std::marker::PhantomData;

/// The loaded kernel of configuration `K`. Loading checked the device's limits and opted in to the shared
/// memory. Grid, block and shared memory come from the type. [`crate::Attention`] plans and validates
/// instead.
pub struct Prepared<K: Entry, D: Driver> {
    kernel: D::Kernel,
    entry: PhantomData<K>,
}

impl<K: Entry, D: Driver> std::fmt::Debug for Prepared<K, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Prepared").field(&K::CONTRACT.symbol).finish()
    }
}

impl<K: Entry, D: Driver> Prepared<K, D> {
    /// Loads the kernel.
    ///
    /// # Errors
    /// [`Error::Driver`] with the compiler's log, or with the device limit that the kernel exceeds;
    /// [`Error::Unsupported`] if this build carries no PTX for it.
    pub fn new(driver: &D) -> Result<Self, Error> {
        Ok(Prepared { kernel: image::load(driver, &K::CONTRACT)?, entry: PhantomData })
    }

    /// Enqueues the kernel on `stream`.
    ///
    /// # Errors
    /// [`Error::Driver`] if the driver fails.
    ///
    /// # Safety
    /// - `K::Params` is plain data without padding, and its values meet its documentation.
    /// - The memory that `params` points to is device memory of `driver`'s context and lives until the launch
    ///   has run. Until then, other work writes none of the kernel's inputs and does not touch its outputs,
    ///   except in the order of this stream.
    /// - This kernel was loaded with `driver`, `stream` belongs to its context, and `self` lives until the
    ///   launch has run.
    pub unsafe fn launch(&self, driver: &D, params: &K::Params, stream: &D::Stream) -> Result<(), Error> {
        // SAFETY: the type determines the kernel's parameters; the caller promises the rest.
        unsafe { driver.launch(&self.kernel, K::grid(params), bytes_of(params), stream) }
    }
}

/// The bytes of a kernel's parameters.
///
/// # Safety
/// `P` has no padding.
pub(crate) unsafe fn bytes_of<P: Copy>(params: &P) -> &[u8] {
    // SAFETY: the bytes are readable while the value lives; the caller promises that all are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(params).cast(), size_of::<P>()) }
}

#[cfg(test)]
mod tests {
    use spec::*;

    #[test]
    fn parameters_have_no_padding() {
        let fields = 4 * size_of::<Tensor>() + size_of::<Lse>() + size_of::<Window>() + 2 * 4;
        assert_eq!(size_of::<FwdParams>(), fields + size_of::<TileOrder>() + size_of::<PerHead>());
        assert_eq!(size_of::<SplitParams>(), size_of::<FwdParams>() + size_of::<Partials>());
        let combine =
            size_of::<Partials>() + size_of::<Tensor>() + size_of::<Lse>() + 2 * size_of::<FastDiv>();
        assert_eq!(size_of::<CombineParams>(), combine);
        let append = 2 * size_of::<Tensor>()
            + size_of::<Cache>()
            + size_of::<Slots>()
            + 2 * size_of::<PerHead>()
            + size_of::<RowParts>()
            + size_of::<FastDiv>()
            + 4;
        assert_eq!(size_of::<AppendParams>(), append);
        let state = size_of::<Tensor>() + size_of::<RowValues>();
        assert_eq!(size_of::<MergeState>(), state);
        let merge = 3 * state
            + 2 * 8
            + size_of::<PerHead>()
            + size_of::<RowParts>()
            + 2 * size_of::<FastDiv>()
            + 4 * 4;
        assert_eq!(size_of::<MergeParams>(), merge);
        assert_eq!(size_of::<RowValues>(), 4 * 8);
        assert_eq!(size_of::<Cache>(), 3 * 8 + 7 * 4 + size_of::<FastDiv>());
        assert_eq!(size_of::<Slots>(), 8 + 2 * 4);
        assert_eq!(size_of::<PerHead>(), 3 * 8 + 2 * 4);
        assert_eq!(size_of::<RowParts>(), 3 * 4 + size_of::<FastDiv>());
        let order = 2 * size_of::<Integers>() + 2 * 4 + 3 * size_of::<FastDiv>() + 5 * 4;
        assert_eq!(size_of::<DecodeOrder>(), order);
        let decode = 2 * size_of::<Tensor>() + 2 * size_of::<Lse>() + size_of::<Cache>() + order;
        let decode = decode + 2 * size_of::<PerHead>() + size_of::<Partials>() + size_of::<Counters>();
        assert_eq!(size_of::<DecodeParams>(), decode + size_of::<FastDiv>() + size_of::<Window>() + 2 * 4);
        assert_eq!([size_of::<Integers>(), size_of::<Counters>()], [8 + 2 * 4; 2]);
        let packed = size_of::<FwdParams>() + 3 * size_of::<Integers>() + size_of::<Sequences>() + 4;
        assert_eq!(size_of::<VarlenParams>(), packed);
        let paged = size_of::<FwdParams>() + size_of::<Cache>() + 2 * size_of::<Integers>();
        assert_eq!(size_of::<PagedParams>(), paged + size_of::<Sequences>() + 4);
        assert_eq!(size_of::<Sequences>(), 2 * 4 + size_of::<FastDiv>());
        assert_eq!(size_of::<Partials>(), 2 * 8 + 2 * 4 + size_of::<FastDiv>() + 4);
        assert_eq!(size_of::<Tensor>(), 3 * 8 + 4 * 4);
        assert_eq!(size_of::<Lse>(), 3 * 8);
        assert_eq!(size_of::<Window>(), 3 * 4);
        assert_eq!(size_of::<TileOrder>(), 3 * 4 + 4 * size_of::<FastDiv>());
        assert_eq!(size_of::<FastDiv>(), 3 * 4);
    }
}
