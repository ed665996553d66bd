//! Attention variants: kernels with the caller's own masks and scores. The caller compiles these kernels.
//!
//! A [`Variant`] is a list of kernels with one mask `M`. A request names the variant
//! ([`AttentionRequest::variant`]), with the parameters of the mask. The host then validates, plans and
//! launches the request like any other, and the planner selects among the variant's kernels.
//! `docs/your-own-attention.md` shows the kernels' side.
//!
//! [`AttentionRequest`]: crate::request::AttentionRequest
//! [`AttentionRequest::variant`]: crate::request::AttentionRequest::variant
//!
//! ```no_run
//! # fn main() -> Result<(), ferroflash::Error> {
//! use ferroflash::request::{AttentionRequest, TensorView};
//! use ferroflash::configuration::{And, Causal, F16, Fwd, Scored, Sink, SinkParams, With};
//! use ferroflash::variant::{Variant, VariantKernel};
//! use ferroflash::{Capabilities, DType, plan};
//! # let [q, k, v, o, sinks] = [1, 2, 3, 4, 5].map(|n| n << 40);
//!
//! type Mask = Scored<Causal, Sink>; // in your crate: your own `MaskMod` or `ScoreMod`
//! type Kernel = With<Fwd<F16, Mask, 8, 2, 1, 4, 4, 4, 2>>;
//! // The macro `variant!` writes such a list, with the PTX that the build script has compiled.
//! static VARIANT: Variant<Mask> =
//!     Variant::new("causal with sinks", &[VariantKernel::new::<Kernel>("causal_sink", "// its PTX")]);
//!
//! let view = |address| TensorView::bshd(address, 1 << 20, DType::F16, [1, 1024, 16, 64]);
//! let request = AttentionRequest::dense(view(q), view(k), view(v), view(o))
//!     .variant(&VARIANT, And::new((), SinkParams { base: sinks }));
//! let l4 = Capabilities::profile("l4").expect("a known card"); // on your device: `Attention::capabilities`
//! assert_eq!(plan(&request, l4)?.contract().symbol, "causal_sink");
//! # Ok(())
//! # }
//! ```
use crate::{AttnInfo, Error};
use spec::{AttnKernel, BlockMask, Contract, Integers, MaskKind, MaskMarker, Plain, Queries, ScoreKinds};
use std::fmt;
use std::marker::PhantomData;

/// Maximum number of bytes of a variant's parameters. Put longer lists into device memory.
pub const MAX_BYTES: usize = 256;

/// A variant of attention: kernels with mask `M`.
pub struct Variant<M: 'static> {
    name: &'static str,
    kernels: &'static [VariantKernel<M>],
}

/// A compiled kernel with mask `M`.
///
/// A list has kernels of one mask:
///
/// ```compile_fail,E0271
/// use ferroflash::configuration::{Causal, F16, Full, Fwd};
/// use ferroflash::variant::{Variant, VariantKernel};
///
/// type Kernel = Fwd<F16, Full, 8, 2, 1, 4, 4, 4, 2>;
/// static CAUSAL: Variant<Causal> = Variant::new("causal", &[VariantKernel::new::<Kernel>("k", "// PTX")]);
/// ```
pub struct VariantKernel<M: 'static> {
    compiled: Compiled,
    mask: PhantomData<fn() -> M>,
}

/// A kernel of a variant, with its code.
#[doc(hidden)]
pub struct Compiled {
    info: AttnInfo,
    /// The number of bytes of the kernel's parameters.
    params: usize,
    ptx: &'static str,
    /// Machine code, each with the number of its architecture: 80 is sm_80.
    cubins: &'static [(u32, &'static [u8])],
}

impl<M: MaskMarker + 'static> VariantKernel<M> {
    /// Creates an entry of the list: kernel `K`, compiled as `symbol`.
    /// [`Attention::load`](crate::Attention::load) checks that `ptx` has this kernel, with these parameters
    /// and threads.
    ///
    /// A mixed batch has two kernels in each launch, which a variant does not have:
    ///
    /// ```compile_fail,E0080
    /// use ferroflash::configuration::{Causal, F16, Fwd, ManyQueries};
    /// use ferroflash::variant::VariantKernel;
    ///
    /// type Kernel = ManyQueries<Fwd<F16, Causal, 8, 2, 1, 4, 4, 4, 2>>;
    /// const KERNEL: VariantKernel<Causal> = VariantKernel::new::<Kernel>("k", "// PTX");
    /// # fn main() { let _ = &KERNEL; }
    /// ```
    ///
    /// A staged bias needs a tensor map, which the parameters of a variant cannot describe:
    ///
    /// ```compile_fail,E0080
    /// use ferroflash::configuration::{Causal, F16, FwdHopper, TmaBias};
    /// use ferroflash::variant::VariantKernel;
    ///
    /// type Mask = TmaBias<Causal, F16>;
    /// type Kernel = FwdHopper<F16, Mask, 2, 8, 4, 3, true>;
    /// const KERNEL: VariantKernel<Mask> = VariantKernel::new::<Kernel>("k", "// PTX");
    /// # fn main() { let _ = &KERNEL; }
    /// ```
    pub const fn new<K: AttnKernel<Mask = M>>(symbol: &'static str, ptx: &'static str) -> Self {
        const {
            assert!(
                !matches!(K::INFO.queries, Queries::Mixed),
                "a variant has no kernels of mixed batches: list `With<Paged<..>>` and `With<Decode<..>>`"
            );
            assert!(
                M::STAGED_BYTES == 0,
                "a variant has no tensor map for `TmaBias`: use `Scored<.., Bias<..>>`, or a request's bias"
            );
        }
        let info = AttnInfo { contract: Contract::of::<K>(symbol), ..K::INFO };
        let compiled = Compiled { info, params: size_of::<K::Params>(), ptx, cubins: &[] };
        VariantKernel { compiled, mask: PhantomData }
    }

    /// Adds machine code, by architecture: 80 is sm_80. A GPU of another architecture gets the PTX.
    ///
    /// # Safety
    /// - Each file is the unchanged output of NVIDIA's assembler for this kernel's PTX. CUDA trusts the
    ///   file's headers.
    #[must_use]
    pub const unsafe fn cubins(mut self, cubins: &'static [(u32, &'static [u8])]) -> Self {
        self.compiled.cubins = cubins;
        self
    }
}

impl<M: MaskMarker + 'static> Variant<M> {
    /// Returns a variant with these kernels, and a name for errors and reasons. Kernels may differ in dtype,
    /// head dim, tile, layout of tensors (dense, varlen, paged, decode) and generation of GPUs.
    ///
    /// # Panics
    /// At compile time, if there is no kernel.
    pub const fn new(name: &'static str, kernels: &'static [VariantKernel<M>]) -> Self {
        assert!(!kernels.is_empty(), "a variant has at least one kernel");
        Variant { name, kernels }
    }

    /// Returns the variant with the parameters of its mask and scores, at most [`MAX_BYTES`]. Parameters of
    /// another type, and longer parameters, do not compile:
    ///
    /// ```compile_fail,E0308
    /// # use ferroflash::{configuration::{Causal, Scored, Sink, SinkParams}, variant::Variant};
    /// fn of(variant: &'static Variant<Scored<Causal, Sink>>) {
    ///     variant.with(SinkParams { base: 0 }); // the mask's parameters are missing: `And::new((), ..)`
    /// }
    /// ```
    ///
    /// ```compile_fail,E0080
    /// # use ferroflash::{configuration::MaskMarker, variant::Variant};
    /// #[derive(Clone, Copy)]
    /// struct Long;
    /// impl MaskMarker for Long {
    ///     type Params = [u64; 33];
    /// }
    /// # fn main() {
    /// let of = |variant: &'static Variant<Long>| variant.with([0; 33]);
    /// # let _: fn(&'static Variant<Long>) -> _ = of;
    /// # }
    /// ```
    pub fn with(&'static self, params: M::Params) -> WithVariant {
        const {
            assert!(size_of::<M::Params>() <= MAX_BYTES, "a variant's parameters have at most 256 bytes");
        }
        let mut bytes = [0; MAX_BYTES];
        params.write(&mut bytes[..size_of::<M::Params>()]);
        let (block_mask, table) = (M::block_mask(&params).copied(), M::table(&params));
        WithVariant { variant: self.any(), bytes, len: size_of::<M::Params>() as u16, block_mask, table }
    }

    /// Returns the variant without its type, for [`Problem::variant`](crate::plan::Problem::variant).
    pub const fn any(&'static self) -> AnyVariant {
        AnyVariant(self)
    }
}

/// Lists the kernels of a [`Variant`]: `variant!("name", kernels::{t5_d64, t5_d128})` for the modules
/// `kernels::t5_d64` and `kernels::t5_d128` of `entry!`. The build script must have written their PTX to
/// `OUT_DIR`, as `CudaBuilder::copy_to` does.
#[macro_export]
macro_rules! variant {
    (@kernel [$($module:ident)::+] $kernel:ident) => {
        $crate::variant::VariantKernel::new::<$($module)::+::$kernel::Kernel>(
            $($module)::+::$kernel::CONTRACT.symbol,
            include_str!(concat!(env!("OUT_DIR"), "/", stringify!($kernel), ".ptx")),
        )
    };
    (@kernels $name:expr, $module:tt $($kernel:ident),+) => {
        $crate::variant::Variant::new($name, &[$($crate::variant!(@kernel $module $kernel)),+])
    };
    ($name:expr, $($module:ident)::+::{$($kernel:ident),+ $(,)?}) => {
        $crate::variant!(@kernels $name, [$($module)::+] $($kernel),+)
    };
}

/// A variant of any mask.
#[derive(Clone, Copy)]
pub struct AnyVariant(&'static dyn List);

/// A variant with the parameters of its mask and scores, for a request.
#[derive(Clone, Copy, PartialEq)]
pub struct WithVariant {
    variant: AnyVariant,
    bytes: [u8; MAX_BYTES],
    len: u16,
    block_mask: Option<BlockMask>,
    table: Option<Integers>,
}

/// A list of kernels, whatever their mask is.
trait List: Send + Sync {
    fn name(&self) -> &'static str;
    fn kernel(&self, index: usize) -> Option<&'static Compiled>;
    fn kinds(&self) -> (MaskKind, ScoreKinds);
}

impl<M: MaskMarker + 'static> List for Variant<M> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn kernel(&self, index: usize) -> Option<&'static Compiled> {
        self.kernels.get(index).map(|kernel| &kernel.compiled)
    }
    fn kinds(&self) -> (MaskKind, ScoreKinds) {
        (M::KIND, M::SCORES)
    }
}

impl AnyVariant {
    /// Returns the name of the variant.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Returns the kernels of the variant.
    pub fn kernels(self) -> impl Iterator<Item = &'static AttnInfo> + Clone {
        self.compiled().map(Compiled::info)
    }

    /// Returns the kind of the variant's mask.
    pub fn mask(&self) -> MaskKind {
        self.0.kinds().0
    }

    /// Returns the kinds of the variant's score transformations.
    pub fn scores(&self) -> ScoreKinds {
        self.0.kinds().1
    }

    /// Returns the variant's kernels with their code.
    pub(crate) fn compiled(self) -> impl Iterator<Item = &'static Compiled> + Clone {
        (0..).map_while(move |index| self.0.kernel(index))
    }
}

impl WithVariant {
    /// Returns the variant.
    pub const fn variant(&self) -> AnyVariant {
        self.variant
    }

    /// Returns the block mask among the parameters.
    pub(crate) const fn block_mask(&self) -> Option<&BlockMask> {
        self.block_mask.as_ref()
    }

    /// Returns the table among the parameters that the scores read and that trains, if there is one.
    pub(crate) const fn table(&self) -> Option<Integers> {
        self.table
    }

    /// Returns the variant without its parameters, except for the tile of a block mask and the size of a
    /// table: the choice of a plan does not depend on the rest.
    pub(crate) fn without_params(self) -> Self {
        let none = Integers { base: 0, count: 0, reserved: 0 };
        let block_mask = self.block_mask.map(|BlockMask { tile, .. }| BlockMask {
            tiles: none,
            blocks: none,
            shape: [0; 4],
            tile,
        });
        let table = self.table.map(|table| Integers { base: 0, ..table });
        WithVariant { bytes: [0; MAX_BYTES], block_mask, table, ..self }
    }

    /// Returns the bytes of the variant's parameters.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl Compiled {
    /// Returns the kernel.
    pub const fn info(&self) -> &AttnInfo {
        &self.info
    }

    /// Returns the number of bytes of the kernel's parameters.
    pub(crate) const fn params(&self) -> usize {
        self.params
    }

    /// Returns the machine code for an architecture, if there is any.
    pub(crate) fn cubin(&self, arch: u32) -> Option<&'static [u8]> {
        self.cubins.iter().find(|(of, _)| *of == arch).map(|(_, cubin)| *cubin)
    }

    /// Returns the PTX, if it contains the kernel with the type's parameters and threads.
    ///
    /// # Errors
    /// Returns the errors of [`checked`].
    pub(crate) fn ptx(&self) -> Result<&'static str, Error> {
        checked(self.ptx, &self.info.contract, self.params)
    }
}

/// Returns the PTX, if it contains the kernel with `params` bytes of parameters and the contract's threads.
///
/// # Errors
/// Returns [`Error::Invalid`], which names the kernel that the PTX lacks, or the PTX's number of bytes of
/// parameters, or its number of threads.
pub(crate) fn checked<'p>(ptx: &'p str, contract: &Contract, params: usize) -> Result<&'p str, Error> {
    let symbol = contract.symbol;
    let entries = || ptx.split(".entry ").skip(1).map(|text| text.split_once('(').unwrap_or((text, "")));
    let Some((_, head)) = entries().find(|(name, _)| name.trim() == symbol) else {
        let names: Vec<_> = entries().map(|(name, _)| name.trim()).collect();
        let has = if names.is_empty() { "no kernel".to_owned() } else { names.join(", ") };
        let expected = format_args!(
            "its PTX has {has}; the build script must compile this kernel: `CudaBuilder::entry` with its \
             contract"
        );
        return Err(Error::invalid("variant", symbol, expected));
    };
    let (parameters, directives) =
        head.split('{').next().and_then(|head| head.split_once(')')).unwrap_or((head, ""));
    let bytes = parameters.split([')', ']']).next().and_then(|first| first.rsplit_once('['));
    let bytes = bytes.and_then(|(_, bytes)| bytes.parse::<usize>().ok()).unwrap_or_default();
    if bytes != params {
        let expected = format_args!(
            "its PTX takes {bytes} bytes of parameters and its type {}; compile host and kernels from \
             the same sources",
            params
        );
        return Err(Error::invalid("variant", symbol, expected));
    }
    let threads = directives.split(".reqntid").nth(1).and_then(|rest| rest.split([',', '\n']).next());
    let threads = threads.and_then(|threads| threads.trim().parse::<u32>().ok());
    if let Some(threads) = threads.filter(|threads| *threads != contract.threads) {
        let expected = format_args!(
            "its PTX runs {threads} threads per block and its type {}; compile host and kernels from the \
             same sources",
            contract.threads
        );
        return Err(Error::invalid("variant", symbol, expected));
    }
    Ok(ptx)
}

impl PartialEq for AnyVariant {
    /// Returns whether both are the same variant.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self.0, other.0)
    }
}

impl PartialEq for Compiled {
    /// Returns whether both are the same kernel.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Compiled").field(&self.info.contract.symbol).finish()
    }
}

impl fmt::Debug for AnyVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Variant").field(&self.name()).finish()
    }
}

impl fmt::Debug for WithVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithVariant").field("variant", &self.variant).field("bytes", &self.bytes()).finish()
    }
}

impl<M: MaskMarker + 'static> fmt::Debug for Variant<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let symbols = self.kernels.iter().map(|kernel| kernel.compiled.info.contract.symbol);
        f.debug_struct("Variant")
            .field("name", &self.name)
            .field("kernels", &symbols.collect::<Vec<_>>())
            .finish()
    }
}
