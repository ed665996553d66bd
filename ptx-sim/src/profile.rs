//! The limits of devices, against which launches are checked.

use crate::LaunchError;

/// The limits of one device.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Profile {
    /// The short name of the device, for example `l4`.
    pub name: &'static str,
    /// Compute capability as major * 10 + minor.
    pub compute_capability: u32,
    /// Number of SMs.
    pub multiprocessors: u32,
    /// Shared memory of a block without opt-in, in bytes.
    pub shared_per_block: u32,
    /// Shared memory of a block with opt-in, in bytes.
    pub shared_per_block_optin: u32,
    /// Shared memory of an SM, in bytes.
    pub shared_per_multiprocessor: u32,
    /// 32-bit registers of an SM.
    pub registers_per_multiprocessor: u32,
    /// Maximum number of threads of a block.
    pub threads_per_block: u32,
    /// Maximum number of threads of an SM.
    pub threads_per_multiprocessor: u32,
}

const KIB: u32 = 1024;

const fn profile(name: &'static str, cc: u32, sms: u32, optin: u32, shared: u32, threads: u32) -> Profile {
    Profile {
        name,
        compute_capability: cc,
        multiprocessors: sms,
        shared_per_block: 48 * KIB,
        shared_per_block_optin: optin * KIB,
        shared_per_multiprocessor: shared * KIB,
        registers_per_multiprocessor: 65536,
        threads_per_block: 1024,
        threads_per_multiprocessor: threads,
    }
}

const PROFILES: [Profile; 10] = [
    profile("l4", 89, 58, 99, 100, 1536),
    profile("rtx4090", 89, 128, 99, 100, 1536),
    profile("a100", 80, 108, 163, 164, 2048),
    profile("h100", 90, 132, 227, 228, 2048),
    profile("h200", 90, 132, 227, 228, 2048),
    profile("b200", 100, 148, 227, 228, 2048),
    profile("rtx5090", 120, 170, 99, 100, 1536),
    profile("l40s", 89, 142, 99, 100, 1536),
    profile("a10", 86, 72, 99, 100, 1536),
    profile("orin", 87, 16, 163, 164, 1536),
];

impl Profile {
    /// The profile called `name`, in any case: `l4`, `a100`, `h100`, `h200`, `rtx4090`, `b200`, `rtx5090`,
    /// `l40s`, `a10`, `orin`.
    ///
    /// # Errors
    /// Returns [`LaunchError::UnknownProfile`], which lists all names.
    pub fn by_name(name: &str) -> Result<Profile, LaunchError> {
        let found = PROFILES.iter().find(|profile| profile.name.eq_ignore_ascii_case(name));
        found.cloned().ok_or_else(|| LaunchError::UnknownProfile {
            name: name.into(),
            known: PROFILES.iter().map(|profile| profile.name).collect::<Vec<_>>().join(", "),
        })
    }

    /// All profiles.
    pub fn all() -> &'static [Profile] {
        &PROFILES
    }

    /// The number of blocks with `threads` threads and `shared` bytes of shared memory that one SM can hold.
    /// This number ignores registers.
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared: u32) -> u32 {
        // The system uses one KiB of each block's shared memory.
        let by_shared = self.shared_per_multiprocessor / (shared + KIB);
        by_shared.min(self.threads_per_multiprocessor / threads.max(1))
    }
}
