//! Launches, and the checks that a driver makes.

use crate::{LaunchError, Profile, ast::Entry, decode::needs, parse::directives::MAX_REGISTERS};

/// The arguments of one kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'p> {
    /// Number of blocks in x, y and z.
    pub grid: [u32; 3],
    /// Number of threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Number of bytes of dynamic shared memory.
    pub dynamic_smem: u32,
    /// The number of bytes of dynamic shared memory that the host has opted in to for this function; 0 if it
    /// has not opted in.
    pub smem_opt_in: u32,
    /// Number of 32-bit registers per thread, as ptxas reports it; `None` if the caller does not know the
    /// number. The simulator then uses the entry's `.maxnreg`.
    pub registers: Option<u32>,
    /// The whole parameter block, in the layout that the PTX declares.
    pub params: &'p [u8],
}

impl<'p> Launch<'p> {
    /// A launch without dynamic shared memory. The registers are those of the entry's `.maxnreg`.
    pub const fn new(grid: [u32; 3], block: [u32; 3], params: &'p [u8]) -> Self {
        Launch { grid, block, dynamic_smem: 0, smem_opt_in: 0, registers: None, params }
    }

    /// Compares the launch with the entry's directives and the device's limits.
    ///
    /// # Errors
    /// Returns the first condition of the driver, or of the entry's directives, that the launch violates.
    pub(crate) fn check(&self, profile: &Profile, entry: &Entry) -> Result<(), LaunchError> {
        check_target(profile, entry)?;
        let Launch { grid, block, .. } = *self;
        if grid.contains(&0) || grid[0] > i32::MAX as u32 || grid[1] > 65535 || grid[2] > 65535 {
            return Err(LaunchError::Grid { grid });
        }
        let threads = volume(block);
        if threads == 0
            || block.iter().any(|&n| n > 1024)
            || threads > u64::from(profile.threads_per_block)
            || block[2] > 64
        {
            let limit = profile.threads_per_block;
            return Err(LaunchError::BlockSize { block, threads, device: profile.name, limit });
        }
        let shape = |directive, wanted| {
            let name = entry.name.clone();
            LaunchError::BlockShape { name, directive, wanted, block }
        };
        if let Some(wanted) = entry.reqntid.filter(|wanted| *wanted != block) {
            return Err(shape(".reqntid", wanted));
        }
        if let Some(wanted) = entry.maxntid.filter(|wanted| volume(*wanted) < threads) {
            return Err(shape(".maxntid", wanted));
        }
        if self.params.len() != entry.param_bytes {
            let (wanted, given) = (entry.param_bytes, self.params.len());
            return Err(LaunchError::ParamSize { name: entry.name.clone(), wanted, given });
        }
        self.check_residency(profile, entry)?;
        self.check_registers(profile, entry)?;
        self.check_shared(profile, entry)
    }

    /// Checks that the threads of `.minnctapersm` blocks fit an SM. If they do not, ptxas drops the directive
    /// with a warning.
    fn check_residency(&self, profile: &Profile, entry: &Entry) -> Result<(), LaunchError> {
        let Some(blocks) = entry.minnctapersm else { return Ok(()) };
        // ptxas counts the threads of `.maxntid`.
        let threads = volume(entry.maxntid.unwrap_or(self.block));
        let limit = profile.threads_per_multiprocessor;
        if threads.saturating_mul(u64::from(blocks)) > u64::from(limit) {
            let name = entry.name.clone();
            return Err(LaunchError::BlocksPerMultiprocessor {
                name,
                blocks,
                threads,
                device: profile.name,
                limit,
            });
        }
        Ok(())
    }

    /// Checks that the registers of one block fit the device.
    fn check_registers(&self, profile: &Profile, entry: &Entry) -> Result<(), LaunchError> {
        // Measured with ptxas 13.0: `.maxnreg` replaces the limit that follows from `.reqntid` or `.maxntid`
        // alone. A kernel of 1024 threads can thus get 254 registers. With `.minnctapersm`, the lower of the
        // two limits holds, and with this limit the block fits.
        let shaped = entry.reqntid.or(entry.maxntid).is_some();
        let allowed = entry.maxnreg.filter(|_| !(shaped && entry.minnctapersm.is_some()));
        let Some(registers) = self.registers.or(allowed) else { return Ok(()) };
        let (name, threads) = (entry.name.clone(), volume(self.block));
        if registers > MAX_REGISTERS {
            return Err(LaunchError::RegistersOfThread { name, registers, limit: MAX_REGISTERS });
        }
        // The hardware allocates warps in groups of four, one per SM partition. The hardware allocates
        // registers in units of 256, which is 8 per thread.
        let placed = 32 * threads.div_ceil(32).next_multiple_of(4);
        let limit = profile.registers_per_multiprocessor;
        let fit = u64::from(limit) / placed / 8 * 8;
        if u64::from(registers) > fit {
            let origin = if self.registers.is_some() { "as the launch says" } else { "as `.maxnreg` allows" };
            return Err(LaunchError::Registers {
                name,
                registers,
                origin,
                threads,
                device: profile.name,
                limit,
                fit,
            });
        }
        Ok(())
    }

    /// Number of 32-bit registers per thread, as the launch or the entry states it. For a kernel with
    /// `setmaxnreg` and without a stated number, this is ptxas' choice: an equal part of an SM's registers
    /// for each thread of the SM's blocks.
    pub(crate) fn registers_of_thread(&self, profile: &Profile, entry: &Entry) -> u32 {
        let threads = entry.reqntid.or(entry.maxntid).map_or_else(|| volume(self.block), volume);
        let blocks = u64::from(entry.minnctapersm.unwrap_or(1).max(1));
        let share = u64::from(profile.registers_per_multiprocessor) / (threads.max(1) * blocks) / 8 * 8;
        self.registers.or(entry.maxnreg).unwrap_or(share.min(256) as u32).next_multiple_of(8)
    }

    fn check_shared(&self, profile: &Profile, entry: &Entry) -> Result<(), LaunchError> {
        let name = || entry.name.clone();
        let bytes = u64::from(entry.static_shared) + u64::from(self.dynamic_smem);
        let limit = profile.shared_per_block_optin;
        if bytes > u64::from(limit) {
            return Err(LaunchError::SharedMemory { name: name(), bytes, device: profile.name, limit });
        }
        if bytes > u64::from(profile.shared_per_block) && self.dynamic_smem > self.smem_opt_in {
            let (limit, opt_in) = (profile.shared_per_block, self.smem_opt_in);
            return Err(LaunchError::SharedMemoryOptIn { name: name(), bytes, limit, opt_in });
        }
        Ok(())
    }
}

/// Checks the target: PTX runs on its target and on later devices, but PTX with a suffix, as in `sm_90a`,
/// runs only on its target.
fn check_target(profile: &Profile, entry: &Entry) -> Result<(), LaunchError> {
    let compute_capability = profile.compute_capability;
    match needs::architecture(&entry.target) {
        Some((arch, false)) if arch <= compute_capability => Ok(()),
        Some((arch, true)) if arch == compute_capability => Ok(()),
        _ => Err(LaunchError::Target {
            target: entry.target.clone(),
            device: profile.name,
            compute_capability,
        }),
    }
}

/// Number of threads of a block with these extents.
fn volume(extents: [u32; 3]) -> u64 {
    extents.iter().fold(1, |product: u64, &n| product.saturating_mul(u64::from(n)))
}
