//! The predecessor's configurations by their names: `fa_s512/128x32w8`, `v3/2`, `flashcore/64x32-cpasync`.
//!
//! Each configuration has two entries of the table: f16, head dim 64, full and causal. The planner never
//! selects them. [`crate::request::AttentionRequest::config`] and `--config` select them by name.
use crate::Error;
use spec::{AttnInfo, Class, DType, Isa, MaskKind};

/// A configuration of the predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The configuration's name: the kernel's name, then the configuration's.
    pub name: &'static str,
    /// The configuration's design in this project.
    pub design: &'static str,
    kernel: Kernel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    /// The suffix of the entries' names, after dtype, head dim and mask.
    Entry(&'static str),
    /// The reason why no kernel can have this configuration.
    Impossible(&'static str),
}
use Kernel::{Entry, Impossible};

const UNEVEN: &str = "80 queries are 5 row tiles of 16, which neither 8 nor 4 warps can share evenly; \
                      fa_s512/80x64w5 has one warp per row tile";

macro_rules! configurations {
    ($($name:literal $kernel:expr, $design:literal;)*) => {
        /// Every configuration of the lineage.
        pub const CONFIGURATIONS: &[Configuration] =
            &[$(Configuration { name: $name, design: $design, kernel: $kernel }),*];
    };
}
configurations! {
    "fa_s512/64x64w4" Entry("64x64_w4"), "64 queries, 64 keys per stage, 4 warps: the baseline";
    "fa_s512/128x32w8" Entry("128x32_w8"), "128 queries, 32 keys per stage, 8 warps";
    "fa_s512/80x64w5" Entry("80x64_w5"), "80 queries, 64 keys per stage, 5 warps";
    "fa_s512/80x64w8" Impossible(UNEVEN), "80 queries, 64 keys per stage, 8 warps";
    "fa_s512/80x64w4" Impossible(UNEVEN), "80 queries, 64 keys per stage, 4 warps";
    "fa_s512/64x64w8" Entry("64x64_k2"),
        "64 queries, 64 keys per stage, 8 warps: two per row tile, each with half of the keys";
    "v3/0" Entry("16x64_s2"), "16 queries, 64 keys per stage, tensor cores";
    "v3/1" Entry("32x64_s1"), "32 queries, 64 keys, one stage, tensor cores";
    "v3/2" Entry("48x64_s2"), "48 queries, 64 keys per stage, tensor cores";
    "v3/3" Entry("32x32_s2"), "32 queries, 32 keys per stage, tensor cores";
    "v3/4" Entry("32x64_s2"), "32 queries, 64 keys, two stages, tensor cores";
    "v3/0-scalar" Entry("16x64_s2_scalar"), "16 queries, 64 keys per stage, CUDA cores";
    "v3/1-scalar" Entry("32x64_s1_scalar"), "32 queries, 64 keys, one stage, CUDA cores";
    "v3/2-scalar" Entry("48x64_s2_scalar"), "48 queries, 64 keys per stage, CUDA cores";
    "v3/3-scalar" Entry("32x32_s2_scalar"), "32 queries, 32 keys per stage, CUDA cores";
    "v3/4-scalar" Entry("32x64_s2_scalar"), "32 queries, 64 keys, two stages, CUDA cores";
    "flashcore/32x32" Entry("32x32_s2"), "32 queries, 32 keys per stage, probabilities in f16";
    "flashcore/64x32-cpasync" Entry("64x32_s2"), "64 queries, 32 keys, double-buffered with cp.async";
    "flashcore/64x32-specialised" Entry("64x32_specialised"), "64 queries, 32 keys, a warp that only copies";
    "flashcore/64x32-persistent" Entry("64x32_persistent"),
        "64 queries, 32 keys, cp.async, the grid fills the card once";
}

impl Configuration {
    /// Returns the configuration with this name, if any.
    pub fn find(name: &str) -> Option<&'static Configuration> {
        CONFIGURATIONS.iter().find(|configuration| configuration.name == name)
    }

    /// Returns the configuration's entries, one per mask.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] with the reason, if no kernel can have this configuration.
    pub fn entries(&self) -> Result<impl Iterator<Item = &'static AttnInfo> + use<>, Error> {
        match self.kernel {
            Entry(suffix) => {
                Ok(spec::plain(Isa::Sm80, Class::Dense).filter(move |entry| suffix_of(entry) == Some(suffix)))
            }
            Impossible(reason) => Err(Error::unsupported(self.name, reason)),
        }
    }

    /// Returns the configuration's entry for a mask.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if no kernel can have this configuration, or the lineage has none for
    /// this mask.
    pub fn entry(&self, mask: MaskKind) -> Result<&'static AttnInfo, Error> {
        self.entries()?.find(|entry| entry.mask == mask).ok_or_else(|| {
            let feature = format_args!("{} with mask {}", self.name, mask.name());
            Error::unsupported(feature, "the lineage's configurations are compiled for full and causal masks")
        })
    }
}

/// Returns the names of an entry in the lineage; other entries have none.
pub fn names(entry: &AttnInfo) -> impl Iterator<Item = &'static str> {
    let suffix = suffix_of(entry);
    let named = move |configuration: &&Configuration| match configuration.kernel {
        Entry(own) => suffix == Some(own),
        Impossible(_) => false,
    };
    CONFIGURATIONS.iter().filter(named).map(|configuration| configuration.name)
}

/// Returns the suffix of an entry's name after dtype, head dim and mask, if the lineage may have it.
fn suffix_of(entry: &AttnInfo) -> Option<&'static str> {
    if (entry.dtype, entry.head_dim) != (DType::F16, 64) {
        return None;
    }
    entry.contract.symbol.strip_prefix("fwd_f16_d64_")?.strip_prefix(entry.mask.name())?.strip_prefix('_')
}
