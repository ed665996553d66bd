//! The GPUs that can run a kernel.
use core::fmt;

/// The GPUs that can run a kernel, by compute capability times 10: 80 is sm_80.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// This generation of GPUs, and every later generation. The PTX is portable, and the driver compiles it
    /// for the installed GPU.
    From(u32),
    /// This generation only. The PTX has the suffix `a`, and uses instructions that later generations may
    /// lack (`wgmma`, TMA's tensor maps, `setmaxnreg`).
    Exactly(u32),
    /// GPUs with `mma.sync` on eight-bit floats: from sm_89 on, but not sm_90, which computes these products
    /// by conversions and 16-bit products. The driver must know PTX 8.4 (CUDA 12.4).
    Fp8Mma,
}

impl Target {
    /// Whether a GPU of compute capability `arch` / 10 can run the kernel.
    pub const fn runs_on(self, arch: u32) -> bool {
        match self {
            Target::From(oldest) => arch >= oldest,
            Target::Exactly(only) => arch == only,
            Target::Fp8Mma => arch >= 89 && arch != 90,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::From(oldest) => write!(f, "from sm_{oldest}"),
            Target::Exactly(only) => write!(f, "exactly sm_{only}a"),
            Target::Fp8Mma => write!(f, "from sm_89, without sm_90"),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::Target::{self, Exactly, From};
    use std::string::ToString;

    #[test]
    fn portable_code_runs_on_what_is_newer_and_the_rest_on_its_own_generation() {
        let check = |target: Target, name: &str, archs: &[u32]| {
            let runs: std::vec::Vec<u32> =
                [75, 80, 86, 89, 90, 100, 120].into_iter().filter(|a| target.runs_on(*a)).collect();
            assert_eq!((target.to_string().as_str(), runs.as_slice()), (name, archs));
        };
        check(From(80), "from sm_80", &[80, 86, 89, 90, 100, 120]);
        check(From(89), "from sm_89", &[89, 90, 100, 120]);
        check(Exactly(90), "exactly sm_90a", &[90]);
        check(Exactly(100), "exactly sm_100a", &[100]);
    }
}
