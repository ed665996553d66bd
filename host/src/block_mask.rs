//! Launches kernels of the caller that make block masks on the device. Such a kernel calls the mask's own
//! function.
//!
//! FlexAttention's `create_block_mask`. The caller compiles the kernel beside the attention kernels of a
//! [variant](mod@crate::variant): `entry!(documents_lists: CreateBlockMask<Documents, 128, 64>);`.
//! `docs/your-own-attention.md` shows both sides.
use crate::request::{Alignment, Index, MAX_SEQLEN};
use crate::variant::{MAX_BYTES, checked};
use crate::{Contract, Driver, Error};
use spec::{
    BlockMask, CreateBlockMaskParams, CreatesBlockMask, FastDiv, Integers, Plain, Window, WithParams,
};
use std::marker::PhantomData;

/// The sequences whose lists a kernel makes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BlockMaskRequest {
    /// Number of sequences with lists: the batch, or 1 if all sequences share their lists.
    pub sequences: usize,
    /// Number of heads with lists: the query heads, or 1 if all heads share their lists.
    pub heads: usize,
    /// The largest number of queries per sequence, as in the attention request.
    pub seqlen_q: usize,
    /// The largest number of keys per sequence, as in the attention request.
    pub seqlen_k: usize,
    /// Offsets of varlen queries; `sequences + 1` integers.
    pub cu_seqlens_q: Option<Index>,
    /// Offsets of varlen keys; `sequences + 1` integers.
    pub cu_seqlens_k: Option<Index>,
    /// Number of valid keys of each sequence, for varlen keys or a KV cache; `sequences` integers.
    pub seqused_k: Option<Index>,
    /// How queries align with keys.
    pub alignment: Alignment,
    /// For a mask that reads the request's window, such as `Local`: the number of visible keys before and
    /// after a query's position, as in the attention request; a side of `None` is unbounded. Other masks have
    /// no window here.
    pub window: Option<[Option<u32>; 2]>,
}

impl BlockMaskRequest {
    /// Lists of dense tensors.
    pub const fn new(sequences: usize, heads: usize, [seqlen_q, seqlen_k]: [usize; 2]) -> Self {
        BlockMaskRequest {
            sequences,
            heads,
            seqlen_q,
            seqlen_k,
            cu_seqlens_q: None,
            cu_seqlens_k: None,
            seqused_k: None,
            alignment: Alignment::BottomRight,
            window: None,
        }
    }

    /// Returns this request with offsets of varlen sequences in Q and in K.
    #[must_use]
    pub const fn varlen(self, cu_seqlens_q: Option<Index>, cu_seqlens_k: Option<Index>) -> Self {
        BlockMaskRequest { cu_seqlens_q, cu_seqlens_k, ..self }
    }

    /// Returns this request with the valid keys per sequence.
    #[must_use]
    pub const fn seqused_k(self, seqused_k: Index) -> Self {
        BlockMaskRequest { seqused_k: Some(seqused_k), ..self }
    }

    /// Returns this request with another alignment.
    #[must_use]
    pub const fn alignment(self, alignment: Alignment) -> Self {
        BlockMaskRequest { alignment, ..self }
    }

    /// Returns this request with the window of the attention request: `[None, Some(0)]` for a causal mask.
    #[must_use]
    pub const fn window(self, window: [Option<u32>; 2]) -> Self {
        BlockMaskRequest { window: Some(window), ..self }
    }

    /// The shape of the lists for blocks of `tile` queries and keys, and their integers.
    fn shape(&self, tile: [u32; 2]) -> Result<([u32; 4], [u32; 2]), Error> {
        let BlockMaskRequest { sequences, heads, seqlen_q, seqlen_k, .. } = *self;
        const MOST: usize = (1 << 31) - 1;
        for (what, size, most) in [
            ("sequences", sequences, MOST),
            ("heads", heads, MOST),
            ("seqlen_q", seqlen_q, MAX_SEQLEN),
            ("seqlen_k", seqlen_k, MAX_SEQLEN),
        ] {
            if size == 0 || size > most {
                return Err(Error::invalid(what, size, format_args!("it must be from 1 to {most}")));
            }
        }
        for (what, offsets) in [("cu_seqlens_q", self.cu_seqlens_q), ("cu_seqlens_k", self.cu_seqlens_k)] {
            if let (1, Some(Index { elements: 3.., .. })) = (sequences, offsets) {
                let expected =
                    "sequences of different lengths have their own lists: set `sequences` to the batch";
                return Err(Error::invalid(what, "offsets of several sequences", expected));
            }
        }
        let blocks = |length: usize, tile: u32| (length as u32).div_ceil(tile);
        let shape = [sequences as u32, heads as u32, blocks(seqlen_q, tile[0]), blocks(seqlen_k, tile[1])];
        let room = BlockMask::room(shape).ok_or_else(|| {
            let feature = format!("lists of {shape:?} sequences, heads, tiles and key blocks");
            Error::unsupported(feature, "they have 2^31 integers or more; share the lists of heads")
        })?;
        Ok((shape, room))
    }
}

/// A loaded kernel `K` that makes block masks: a [`CreateBlockMask`](spec::CreateBlockMask).
pub struct BlockMaskKernel<K, D: Driver> {
    kernel: D::Kernel,
    of: PhantomData<fn() -> K>,
}

impl<K, D: Driver> std::fmt::Debug for BlockMaskKernel<K, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockMaskKernel").finish_non_exhaustive()
    }
}

impl<K: CreatesBlockMask, D: Driver> BlockMaskKernel<K, D> {
    /// Loads the kernel from the PTX of the caller's build: `CONTRACT` of the module that `entry!` makes, and
    /// the text of the file of this name in `OUT_DIR`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the PTX has no such kernel, or takes other parameters; [`Error::Driver`].
    pub fn new(driver: &D, contract: &Contract, ptx: &str) -> Result<Self, Error> {
        let kernel = driver.load(checked(ptx, contract, size_of::<K::Params>())?, contract)?;
        Ok(BlockMaskKernel { kernel, of: PhantomData })
    }

    /// Returns the number of 32-bit integers of the tiles, and the number of 32-bit integers of the blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a size is 0; [`Error::Unsupported`] if there are 2^31 integers or more.
    pub fn room(request: &BlockMaskRequest) -> Result<[usize; 2], Error> {
        Ok(request.shape(K::TILE)?.1.map(|integers| integers as usize))
    }

    /// Enqueues the kernel. The kernel fills `lists`: the integers of tiles, and the integers of blocks. Both
    /// have at least [`BlockMaskKernel::room`]. Returns the block mask, for parameters of later launches on
    /// `stream`.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the memory that is too small or misaligned, or says that the kernel's mask
    /// reads a window and the request has none, or the other way round; the errors of
    /// [`BlockMaskKernel::room`]; [`Error::Driver`].
    ///
    /// # Safety
    /// - The memory that `request`, `params` and `lists` name is memory of `driver`'s context. It lives
    ///   until the launch has run. Until then, other work does not touch `lists` and does not write the rest,
    ///   except in the order of this stream.
    /// - This kernel was loaded with `driver`, from PTX of its type, `stream` belongs to its context, and
    ///   `self` lives until the launch has run.
    pub unsafe fn launch(
        &self,
        driver: &D,
        request: &BlockMaskRequest,
        params: K::Variant,
        lists: [Index; 2],
        stream: &D::Stream,
    ) -> Result<BlockMask, Error> {
        const {
            assert!(size_of::<K::Variant>() <= MAX_BYTES, "a mask's parameters have at most 256 bytes");
        }
        let (shape, room) = request.shape(K::TILE)?;
        let window = window(request.window, K::READS_WINDOW)?;
        let [tiles, blocks] =
            [integers("lists[0]", Some(lists[0]), room[0])?, integers("lists[1]", Some(lists[1]), room[1])?];
        let mask = BlockMask { tiles, blocks, shape, tile: K::TILE };
        let sequences = shape[0];
        let divisor = |of: u32| FastDiv::new(of).unwrap_or(FastDiv::ONE);
        let kernel = CreateBlockMaskParams {
            lists: mask,
            heads: divisor(shape[1]),
            m_blocks: divisor(shape[2]),
            longest: [request.seqlen_q as u32, request.seqlen_k as u32],
            cu_seqlens_q: integers("cu_seqlens_q", request.cu_seqlens_q, sequences + 1)?,
            cu_seqlens_k: integers("cu_seqlens_k", request.cu_seqlens_k, sequences + 1)?,
            seqused_k: integers("seqused_k", request.seqused_k, sequences)?,
            window,
            bottom_right: (request.alignment == Alignment::BottomRight) as u32,
            reserved: 0,
        };
        let mut bytes = [0; size_of::<CreateBlockMaskParams>() + MAX_BYTES];
        let (first, rest) = bytes.split_at_mut(size_of::<CreateBlockMaskParams>());
        kernel.write(first);
        params.write(&mut rest[..size_of::<K::Variant>()]);
        let grid = K::grid(&WithParams::new(kernel, params));
        let bytes = &bytes[..size_of::<CreateBlockMaskParams>() + size_of::<K::Variant>()];
        // SAFETY: `new` has compared the PTX with the type; the caller promises the rest.
        unsafe { driver.launch(&self.kernel, grid, bytes, stream)? };
        Ok(mask)
    }
}

/// The window as kernels read it. `is_read` says whether the mask reads it.
fn window(window: Option<[Option<u32>; 2]>, is_read: bool) -> Result<[i32; 2], Error> {
    let side =
        |keys: Option<u32>| keys.and_then(|keys| i32::try_from(keys).ok()).unwrap_or(Window::UNBOUNDED);
    let expected = match (window, is_read) {
        (Some(_), true) | (None, false) => return Ok(window.unwrap_or_default().map(side)),
        (None, true) => {
            "the kernel's mask reads the window of the attention request; set the window with \
             `BlockMaskRequest::window`"
        }
        (Some(_), false) => "the kernel's mask reads no window; leave the window out",
    };
    let value = format!("{window:?}");
    Err(Error::invalid("window", value, expected))
}

/// `count` integers, if `index` has them.
fn integers(what: &'static str, index: Option<Index>, count: u32) -> Result<Integers, Error> {
    let Some(Index { address, elements }) = index else {
        return Ok(Integers { base: 0, count: 0, reserved: 0 });
    };
    if address == 0 || !address.is_multiple_of(4) {
        let expected = "it must be the device address of 32-bit integers, a multiple of 4";
        return Err(Error::invalid(what, format_args!("{address:#x}"), expected));
    }
    if elements < count.into() {
        let expected = format_args!("it must have at least {count} integers");
        return Err(Error::invalid(what, format_args!("{elements} integers"), expected));
    }
    Ok(Integers { base: address, count, reserved: 0 })
}
