//! The GPU generations that a device crate can be compiled for.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Target};

/// A PTX target. PTX of a plain target runs on every later GPU; PTX of a target with suffix `a` runs on that
/// generation alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arch {
    /// The A100 and all later GPUs.
    Sm80,
    /// The RTX 30 series and the A10.
    Sm86,
    /// The L4, L40 and RTX 40 series, which add FP8 `mma`.
    Sm89,
    /// [`Arch::Sm89`] with `mma.sync` on eight-bit floats, which PTX has since version 8.4. The name is the
    /// same.
    Sm89Fp8,
    /// The H100 and H200, without `wgmma`, TMA and `setmaxnreg`.
    Sm90,
    /// The H100 and H200 with `wgmma`, TMA and `setmaxnreg`; this PTX runs on no other generation.
    Sm90a,
}

impl Arch {
    /// Every target with its own name, oldest first.
    pub const ALL: [Arch; 5] = [Arch::Sm80, Arch::Sm86, Arch::Sm89, Arch::Sm90, Arch::Sm90a];

    /// The name that rustc, ptxas and PTX's `.target` share: `sm_80`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Arch::Sm80 => "sm_80",
            Arch::Sm86 => "sm_86",
            Arch::Sm89 | Arch::Sm89Fp8 => "sm_89",
            Arch::Sm90 => "sm_90",
            Arch::Sm90a => "sm_90a",
        }
    }

    /// The folder of compilers for this target. With one folder for two PTX versions, each compiler would
    /// compile `core` again whenever the version changes.
    pub(crate) const fn compilers(self) -> &'static str {
        if matches!(self, Arch::Sm89Fp8) { "sm_89-fp8" } else { self.name() }
    }

    /// The architecture for which kernels of a target are compiled: the oldest GPU that can run them. Returns
    /// `None` for an unknown target.
    pub fn of(target: Target) -> Option<Arch> {
        let name = match target {
            Target::From(oldest) => format!("sm_{oldest}"),
            Target::Exactly(only) => format!("sm_{only}a"),
            Target::Fp8Mma => return Some(Arch::Sm89Fp8),
        };
        name.parse().ok()
    }

    /// Whether ptxas can assemble PTX of this target for `gpu`. PTX of a plain target assembles for every
    /// plain target that is not older. PTX of a target with suffix `a` assembles for that target only. For
    /// sm_90, ptxas replaces products of eight-bit floats by many instructions, so they count as missing.
    pub fn assembles_for(self, gpu: Arch) -> bool {
        if self == Arch::Sm89Fp8 {
            return gpu == Arch::Sm89;
        }
        self == gpu || (self < gpu && self != Arch::Sm90a && gpu != Arch::Sm90a)
    }

    /// The PTX version of the module, as rustc's target feature.
    ///
    /// The version is the lowest one that has the target's instructions, because a driver refuses PTX that is
    /// newer than the driver.
    pub(crate) const fn ptx_feature(self) -> &'static str {
        match self {
            Arch::Sm80 | Arch::Sm86 | Arch::Sm90 => "+ptx78",
            // PTX has conversions of eight-bit types since this version.
            Arch::Sm89 => "+ptx81",
            // PTX has `mma` on eight-bit floats since this version.
            Arch::Sm89Fp8 => "+ptx84",
            Arch::Sm90a => "+ptx83",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Arch {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Arch::ALL
            .into_iter()
            .find(|a| a.name() == name)
            .ok_or_else(|| Error::UnknownArch { name: name.to_owned() })
    }
}
