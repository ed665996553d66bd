//! Plans and launches a caller's variants for `variants.py`, on torch's tensors and streams.
use ferroflash::block_mask::{BlockMaskKernel, BlockMaskRequest};
use ferroflash::configuration::{
    And, BlockMask, BlockSparse, Contract, CreatesBlockMask, FastDiv, Full, Integers, Scored,
};
use ferroflash::driver::{Harness, RawDriver, RawStream};
use ferroflash::plan::PlanOf;
use ferroflash::request::{AttentionRequest, Index, TensorView};
use ferroflash::variant::Variant;
use ferroflash::{Attention, DType, variant};
use kernels::{Alibi, Neighbours, NeighboursParams, OwnCausal, Softcap, natten_lists_d64, natten_lists_d128};
use std::error::Error;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

static CAUSAL: Variant<OwnCausal> =
    variant!("causal", kernels::{causal_f16_d64, causal_f16_d64_short, causal_f16_d128});
static SOFTCAP: Variant<Scored<OwnCausal, Softcap>> =
    variant!("softcap", kernels::{softcap_f16_d64, softcap_f16_d128});
static ALIBI: Variant<Scored<OwnCausal, Alibi>> = variant!("alibi", kernels::{alibi_f16_d64, alibi_f16_d128});
static NATTEN: Variant<BlockSparse<Neighbours>> =
    variant!("natten", kernels::{natten_f16_d64, natten_f16_d128, natten_bf16_d64, natten_bf16_d128});
static BLOCKS: Variant<BlockSparse<Full>> =
    variant!("blocks", kernels::{blocks_f16_d64, blocks_f16_d128, blocks_bf16_d64, blocks_bf16_d128});

/// A problem on contiguous tensors `[batch, seqlen, heads, head_dim]`.
#[repr(C)]
pub struct Problem {
    q: u64,
    k: u64,
    v: u64,
    o: u64,
    /// Slopes of ALiBi, or a block mask's tiles and blocks: address and number of 32-bit words.
    tables: [[u64; 2]; 2],
    is_bf16: u64,
    batch: u64,
    heads: u64,
    seqlen: u64,
    head_dim: u64,
    /// The softcap.
    softcap: f64,
    /// Pixels of a row and radius.
    image: [u64; 2],
    /// Queries and keys of a block in lists.
    tile: [u64; 2],
}

/// A plan with its request.
pub struct Prepared {
    plan: PlanOf<AttentionRequest<'static>>,
    request: AttentionRequest<'static>,
}

type Card = Attention<RawDriver>;

/// Returns the card of the process, with the context that torch uses.
fn card() -> Result<&'static Card, Box<dyn Error>> {
    static CARD: OnceLock<Card> = OnceLock::new();
    if let Some(card) = CARD.get() {
        return Ok(card);
    }
    let card = Attention::new(RawDriver::primary(0)?);
    Ok(CARD.get_or_init(|| card))
}

impl Problem {
    fn integers(&self, table: usize) -> Integers {
        let [base, count] = self.tables[table];
        Integers { base, count: count as u32, reserved: 0 }
    }

    fn neighbours(&self) -> Result<NeighboursParams, Box<dyn Error>> {
        let [pixels, radius] = self.image.map(|n| n as i32);
        let width = FastDiv::new(pixels as u32).ok_or("an image row has at least one pixel")?;
        Ok(NeighboursParams { width, pixels, radius, reserved: 0 })
    }

    /// The block mask whose lists all sequences and heads share.
    fn block_mask(&self) -> BlockMask {
        let [tiles, blocks] = [0, 1].map(|table| self.integers(table));
        let tile = self.tile.map(|size| size as u32);
        let [rows, columns] = tile.map(|size| (self.seqlen as u32).div_ceil(size));
        BlockMask { tiles, blocks, shape: [1, 1, rows, columns], tile }
    }

    /// Makes the block mask of [`NATTEN`] in the tables.
    ///
    /// # Safety
    /// - Tables and stream are those of the primary context.
    unsafe fn lists<K: CreatesBlockMask<Variant = NeighboursParams>>(
        &self,
        contract: &Contract,
        ptx: &str,
        stream: *mut c_void,
    ) -> Result<(), Box<dyn Error>> {
        let driver = card()?.driver();
        let kernel = BlockMaskKernel::<K, _>::new(driver, contract, ptx)?;
        let request = BlockMaskRequest::new(1, 1, [self.seqlen as usize; 2]);
        let tables = self.tables.map(|[address, elements]| Index { address, elements });
        // SAFETY: the caller promises memory and stream. The kernel lives until the stream is empty.
        unsafe {
            let stream = RawStream::from_raw(stream);
            kernel.launch(driver, &request, self.neighbours()?, tables, &stream)?;
            Ok(driver.synchronize(&stream)?)
        }
    }

    fn request(&self, variant: &str) -> Result<AttentionRequest<'static>, Box<dyn Error>> {
        let dtype = if self.is_bf16 == 0 { DType::F16 } else { DType::Bf16 };
        let shape = [self.batch, self.seqlen, self.heads, self.head_dim];
        let view = |address| {
            let elements = shape.iter().product();
            TensorView::bshd(address, elements, dtype, shape.map(|size| size as usize))
        };
        let [q, k, v, o] = [self.q, self.k, self.v, self.o].map(view);
        let request = AttentionRequest::dense(q, k, v, o);
        Ok(match variant {
            "causal" => request.variant(&CAUSAL, ()),
            "softcap" => request.variant(&SOFTCAP, And::new((), [self.softcap as f32, 0.0])),
            "alibi" => request.variant(&ALIBI, And::new((), self.integers(0))),
            "natten" => request.variant(&NATTEN, And::new(self.neighbours()?, self.block_mask())),
            "blocks" => request.variant(&BLOCKS, And::new((), self.block_mask())),
            _ => return Err(format!("no variant {variant}").into()),
        })
    }
}

/// Prints an error, and returns null.
fn pointer<T>(result: Result<T, Box<dyn Error>>) -> *mut T {
    result.map_or_else(
        |error| {
            eprintln!("own-variants: {error}");
            std::ptr::null_mut()
        },
        |value| Box::into_raw(Box::new(value)),
    )
}

/// Prints an error, and returns 1.
fn status(result: Result<(), Box<dyn Error>>) -> i32 {
    result.map_or_else(
        |error| {
            eprintln!("own-variants: {error}");
            1
        },
        |()| 0,
    )
}

/// Plans a problem. Returns null after an error, which is printed.
///
/// # Safety
/// - `variant` is a C string, and `problem` points to a problem. Its tensors and tables are device memory of
///   the primary context, as long as the result is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn own_prepare(variant: *const c_char, problem: *const Problem) -> *mut Prepared {
    // SAFETY: the caller promises a C string and a problem.
    let (variant, problem) = unsafe { (CStr::from_ptr(variant), &*problem) };
    let prepare = || {
        let request = problem.request(variant.to_str()?)?;
        Ok(Prepared { plan: card()?.plan(&request)?, request })
    };
    pointer(prepare())
}

/// Launches a plan. Returns 0, or 1 after an error, which is printed.
///
/// # Safety
/// - `prepared` came from [`own_prepare`], and its memory still exists. `stream` is a stream of the primary
///   context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn own_launch(prepared: *const Prepared, stream: *mut c_void) -> i32 {
    let launch = || -> Result<(), Box<dyn Error>> {
        // SAFETY: the caller makes the promises of both functions.
        unsafe {
            let Prepared { plan, request } = &*prepared;
            Ok(card()?.launch(plan, request, &RawStream::from_raw(stream))?)
        }
    };
    status(launch())
}

/// Makes the block mask of `natten` on the device, in the problem's tables. Returns 0, or 1 after an error,
/// which is printed.
///
/// # Safety
/// - The promises of [`own_prepare`] and [`own_launch`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn own_natten_lists(problem: *const Problem, stream: *mut c_void) -> i32 {
    // SAFETY: the caller promises a problem.
    let problem = unsafe { &*problem };
    // SAFETY: the caller makes the promises of `lists`.
    status(unsafe {
        match problem.head_dim {
            64 => {
                let ptx = include_str!(concat!(env!("OUT_DIR"), "/natten_lists_d64.ptx"));
                problem.lists::<natten_lists_d64::Kernel>(&natten_lists_d64::CONTRACT, ptx, stream)
            }
            _ => {
                let ptx = include_str!(concat!(env!("OUT_DIR"), "/natten_lists_d128.ptx"));
                problem.lists::<natten_lists_d128::Kernel>(&natten_lists_d128::CONTRACT, ptx, stream)
            }
        }
    })
}

/// Returns the name of the kernel of a plan, which lives as long as the process.
///
/// # Safety
/// - `prepared` came from [`own_prepare`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn own_entry(prepared: *const Prepared, length: *mut usize) -> *const u8 {
    // SAFETY: the caller promises a plan, and a place for the length.
    unsafe {
        let symbol = (*prepared).plan.contract().symbol;
        *length = symbol.len();
        symbol.as_ptr()
    }
}

/// Frees a plan.
///
/// # Safety
/// - `prepared` came from [`own_prepare`], and is freed once, when no launch of it runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn own_free(prepared: *mut Prepared) {
    // SAFETY: the caller promises a plan that nobody uses.
    drop(unsafe { Box::from_raw(prepared) });
}
