//! A device's limits. Planning knows nothing else about the device.
use crate::Error;
use spec::{Contract, TensorMap};
use std::borrow::Cow;

/// The suffix of a simulated card's name.
pub(crate) const SIMULATED: &str = " (simulated)";

/// A device's limits. [`Capabilities::PROFILES`] has the limits of common cards, to plan without a device.
/// For another card, copy the most similar profile and change its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The driver's name for the device.
    pub name: Cow<'static, str>,
    /// Compute capability, `(major, minor)`.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors: at most 65536.
    pub sms: u32,
    /// Maximum dynamic shared memory per block, in bytes, with opt-in.
    pub smem_per_block: u32,
    /// Shared memory per SM, in bytes.
    pub smem_per_sm: u32,
    /// 32-bit registers per SM.
    pub registers_per_sm: u32,
    /// L2 cache, in bytes.
    pub l2_bytes: u64,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// Whether the device has TMA and the driver supports the kernels that use it (CUDA 12.3 or later).
    pub tensor_maps: bool,
}

impl Capabilities {
    /// Common cards by name: `l4`, `a100`, `h100`, `h200`, `rtx4090`, `b200`, `rtx5090`, `l40s`, `a10`,
    /// `orin`.
    pub const PROFILES: &[(&'static str, Capabilities)] = &[
        ("l4", card("NVIDIA L4", (8, 9), 58, [99, 100], 48 << 20, 24)),
        ("a100", card("NVIDIA A100-SXM4-80GB", (8, 0), 108, [163, 164], 40 << 20, 80)),
        ("h100", card("NVIDIA H100 80GB HBM3", (9, 0), 132, [227, 228], 50 << 20, 80)),
        ("h200", card("NVIDIA H200", (9, 0), 132, [227, 228], 60 << 20, 141)),
        ("rtx4090", card("NVIDIA GeForce RTX 4090", (8, 9), 128, [99, 100], 72 << 20, 24)),
        ("b200", card("NVIDIA B200", (10, 0), 148, [227, 228], 126 << 20, 180)),
        ("rtx5090", card("NVIDIA GeForce RTX 5090", (12, 0), 170, [99, 100], 96 << 20, 32)),
        ("l40s", card("NVIDIA L40S", (8, 9), 142, [99, 100], 96 << 20, 48)),
        ("a10", card("NVIDIA A10", (8, 6), 72, [99, 100], 6 << 20, 24)),
        ("orin", card("Jetson AGX Orin 64GB", (8, 7), 16, [163, 164], 4 << 20, 64)),
    ];

    /// Returns a common card by its name in [`Capabilities::PROFILES`].
    pub fn profile(name: &str) -> Option<&'static Capabilities> {
        Self::PROFILES.iter().find(|(known, _)| *known == name).map(|(_, capabilities)| capabilities)
    }

    /// Maximum number of streaming multiprocessors in plans.
    const MOST_SMS: u32 = 1 << 16;

    /// Checks the fields, because they are public and planning computes with them.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the field.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.sms > Self::MOST_SMS {
            let expected = "it must be at most 65536; begin with the most similar of Capabilities::PROFILES";
            return Err(Error::invalid("capabilities.sms", self.sms, expected));
        }
        Ok(())
    }

    /// Returns the architecture as a number: 89 for compute capability 8.9.
    pub const fn arch(&self) -> u32 {
        let (major, minor) = self.compute_capability;
        major.saturating_mul(10).saturating_add(minor)
    }

    /// Returns the maximum number of resident threads per SM.
    pub const fn threads_per_sm(&self) -> u32 {
        match self.arch() {
            86 | 87 | 89 | 110 | 120 | 121 => 1536,
            75 => 1024,
            _ => 2048,
        }
    }

    /// Returns a number of thread blocks of a kernel that an SM certainly holds at once. Shared memory,
    /// threads and registers limit this number. This function assumes 255 registers per thread, or the number
    /// that the kernel's `.minnctapersm` allows.
    pub const fn blocks_per_sm(&self, kernel: &Contract) -> u32 {
        // The driver reserves 1 KiB of shared memory per block.
        let by_smem = self.smem_per_sm / kernel.smem_bytes.saturating_add(1024);
        let threads = if kernel.threads == 0 { 1 } else { kernel.threads };
        let by_threads = self.threads_per_sm() / threads;
        let mut by_registers = self.registers_per_sm / threads.saturating_mul(256);
        if by_registers < kernel.min_blocks_per_sm {
            by_registers = kernel.min_blocks_per_sm;
        }
        let mut blocks = if by_smem < by_registers { by_smem } else { by_registers };
        if by_threads < blocks {
            blocks = by_threads;
        }
        if blocks == 0 { 1 } else { blocks }
    }

    /// Checks that the device can run a kernel: its generation and its shared memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names the missing capability.
    pub fn runs(&self, kernel: &Contract) -> Result<(), Error> {
        let feature = format_args!("{} on {}", kernel.symbol, self.name);
        if !kernel.target.runs_on(self.arch()) {
            let (major, minor) = self.compute_capability;
            let target = kernel.target;
            let reason = format_args!(
                "the kernel's target: {target}; the device has compute capability {major}.{minor}; name a \
                 kernel for this device, or leave config out"
            );
            return Err(Error::unsupported(feature, reason));
        }
        let (needed, limit) = (kernel.smem_bytes, self.smem_per_block);
        if needed > limit {
            let reason =
                format_args!("it needs {needed} bytes of shared memory per block; the device has {limit}");
            return Err(Error::unsupported(feature, reason));
        }
        if kernel.param_align == TensorMap::ALIGN && !self.tensor_maps {
            let reason =
                "the kernel needs tensor maps, which need a driver of CUDA 12.3 or later; update the driver";
            return Err(Error::unsupported(feature, reason));
        }
        Ok(())
    }
}

/// Returns a card's limits from its data sheet. `[of a block, of an SM]` is shared memory in KiB.
const fn card(
    name: &'static str,
    compute_capability: (u32, u32),
    sms: u32,
    [block_kib, sm_kib]: [u32; 2],
    l2_bytes: u64,
    memory_gib: u64,
) -> Capabilities {
    Capabilities {
        name: Cow::Borrowed(name),
        compute_capability,
        sms,
        smem_per_block: block_kib * 1024,
        smem_per_sm: sm_kib * 1024,
        registers_per_sm: 65_536,
        l2_bytes,
        memory_bytes: memory_gib << 30,
        tensor_maps: compute_capability.0 >= 9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spec::Target;

    #[test]
    fn code_for_one_generation_runs_on_that_one_alone() {
        let planted = Contract::new("wgmma", 128).target(Target::Exactly(90)).smem_bytes(200 << 10);
        let check = |card: &str, refusal: &str| {
            let runs = Capabilities::profile(card).expect("a known card").runs(&planted);
            assert_eq!(runs.is_ok(), refusal.is_empty(), "{card}");
            assert!(runs.err().is_none_or(|e| e.to_string().contains(refusal)), "{card}");
        };
        check("h200", "");
        check("b200", "exactly sm_90a; the device has compute capability 10.0");
        check("rtx5090", "exactly sm_90a; the device has compute capability 12.0");
        check("a100", "exactly sm_90a; the device has compute capability 8.0");
    }

    /// Fields are public, so a caller can set a value that no card has. The error then names the field, and
    /// nothing overflows.
    #[test]
    fn cards_that_cannot_be() {
        use crate::plan::{explain, plan};
        use crate::request::{AttentionRequest, Index, KvCache, KvPages, Mask, Scratch, TensorView};
        use crate::{DType, Problem};
        let tensor = |n: u64, rows| TensorView::bshd(n << 40, 1 << 39, DType::F16, [2, rows, 8, 128]);
        let forward = AttentionRequest::dense(tensor(1, 512), tensor(2, 512), tensor(3, 512), tensor(4, 512));
        let forward = forward.mask(Mask::Causal).scratch(Scratch::Fastest);
        let pages = |n: u64| TensorView::bshd(n << 40, 1 << 39, DType::F16, [2, 512, 8, 128]);
        let cache = KvCache::dense(KvPages::new(pages(2), pages(3)), Index::new(9 << 40, 2));
        let decode = AttentionRequest::cached(tensor(1, 1), cache, tensor(4, 1)).scratch(Scratch::Fastest);
        let problem = Problem::new(DType::F16, 2, 512, 8, 128);
        let plans = |card: &Capabilities| {
            let supported = explain(&problem, card, Scratch::Fastest).map(|_| ());
            [plan(&forward, card).map(|_| ()), supported, plan(&decode, card).map(|_| ())]
        };
        for (_, card) in Capabilities::PROFILES {
            for sms in [(1 << 16) + 1, 1 << 26, u32::MAX] {
                for outcome in plans(&Capabilities { sms, ..card.clone() }) {
                    let error = outcome.expect_err("no such card").to_string();
                    assert!(error.starts_with(&format!("invalid capabilities.sms: {sms};")), "{error}");
                }
            }
            for sms in [0, 1, 1 << 16] {
                assert_eq!(plans(&Capabilities { sms, ..card.clone() }), [Ok(()), Ok(()), Ok(())], "{sms}");
            }
            // Planning accepts any value of the other fields without a panic.
            let most = u32::MAX;
            let large = Capabilities { smem_per_block: most, smem_per_sm: most, ..card.clone() };
            let _ = plans(&Capabilities { registers_per_sm: most, sms: 1 << 16, ..large });
            let _ = plans(&Capabilities { l2_bytes: u64::MAX, ..card.clone() });
            let _ = plans(&Capabilities { registers_per_sm: 0, smem_per_sm: 0, l2_bytes: 0, ..card.clone() });
            let _ = plans(&Capabilities { compute_capability: (most, most), ..card.clone() });
        }
        let nothing = Contract::new("nothing", 0).smem_bytes(u32::MAX);
        assert_eq!(Capabilities::PROFILES[0].1.blocks_per_sm(&nothing), 1);
    }

    #[test]
    fn maps_want_a_driver_that_encodes_them() {
        let planted = Contract::new("maps", 128).target(Target::Exactly(90)).param_align(TensorMap::ALIGN);
        let mut h200 = Capabilities::profile("h200").expect("a known card").clone();
        assert_eq!(h200.runs(&planted), Ok(()));
        h200.tensor_maps = false;
        assert!(h200.runs(&planted).expect_err("an old driver").to_string().contains("CUDA 12.3"));
    }

    #[test]
    fn no_kernel_is_larger_than_the_shared_memory() {
        let large = Contract::new("large", 128).smem_bytes(100 << 10);
        let refused = Capabilities::profile("l4").expect("a known card").runs(&large).expect_err("99 KiB");
        assert!(refused.to_string().contains("102400 bytes"), "{refused}");
    }
}
