//! The simulated device: memory and launches.

use std::{collections::HashMap, fmt, sync::Arc};

use crate::{
    Launch, LaunchError, MemoryError, Module, Options, Outcome, Profile,
    ast::{Relocation, Space, Variable},
    decode::{self, Program},
    exec::{self, Context, Counter, Progress, Released, Watcher},
    memory::GlobalMemory,
};

/// Largest number of bytes of local memory per thread, on every device.
const LOCAL_LIMIT: u32 = 512 << 10;

/// A simulated GPU.
pub struct Gpu {
    profile: Profile,
    options: Options,
    memory: GlobalMemory,
    /// The addresses of global variables, for each module that was launched.
    modules: HashMap<u64, decode::Symbols>,
    /// Decoded kernels of earlier launches, by module and function.
    programs: HashMap<(u64, usize), Arc<Program>>,
    watcher: Option<Box<Watcher>>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gpu { profile, options, .. } = self;
        f.debug_struct("Gpu").field("profile", profile).field("options", options).finish_non_exhaustive()
    }
}

impl Gpu {
    /// A device with the limits of `profile`.
    pub fn new(profile: Profile, options: Options) -> Gpu {
        Gpu {
            profile,
            options,
            memory: GlobalMemory::default(),
            modules: HashMap::new(),
            programs: HashMap::new(),
            watcher: None,
        }
    }

    /// The limits of the device.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The settings, which may change between launches.
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// Calls `watcher` with the progress of a launch every few seconds. Any thread may make the call.
    pub fn watch(&mut self, watcher: impl Fn(Progress) + Send + Sync + 'static) {
        self.watcher = Some(Box::new(watcher));
    }

    /// Allocates `bytes` bytes, which reports call `name`. The address is a multiple of `align`, and of no
    /// larger power of two. The content is uninitialised, and reads as NaN.
    ///
    /// # Errors
    /// Returns [`MemoryError::BadAllocation`] for sizes above 2^35 bytes, and for alignments that are not a
    /// power of two up to 2^20.
    pub fn alloc(&mut self, name: &str, bytes: usize, align: usize) -> Result<u64, MemoryError> {
        self.memory.alloc(name, bytes, align, None)
    }

    /// Like [`Self::alloc`], but with initial content. At the first access to a page, `content` computes the
    /// bytes from an offset on.
    ///
    /// # Errors
    /// The errors of [`Self::alloc`].
    pub fn alloc_with(
        &mut self,
        name: &str,
        bytes: usize,
        align: usize,
        content: impl Fn(usize, &mut [u8]) + Send + Sync + 'static,
    ) -> Result<u64, MemoryError> {
        self.memory.alloc(name, bytes, align, Some(Box::new(content)))
    }

    /// Frees the allocation that begins at `address`. The simulator never reuses the address, so it catches
    /// later accesses.
    ///
    /// # Errors
    /// Returns an error if no live allocation starts at `address`.
    pub fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        let (_, offset) = self.memory.host(address, 0)?;
        if offset != 0 {
            return Err(MemoryError::Unknown { address });
        }
        self.memory.free(address);
        Ok(())
    }

    /// Copies `data` to `address`.
    ///
    /// # Errors
    /// Returns an error if the range is not within one live allocation.
    pub fn write(&mut self, address: u64, data: &[u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.memory.host(address, data.len())?;
        allocation.write(offset, data);
        Ok(())
    }

    /// Sets `bytes` bytes at `address` to `value`.
    ///
    /// # Errors
    /// The errors of [`Self::write`].
    pub fn fill(&mut self, address: u64, value: u8, bytes: usize) -> Result<(), MemoryError> {
        let (allocation, offset) = self.memory.host(address, bytes)?;
        let chunk = [value; 4096];
        for start in (0..bytes).step_by(chunk.len()) {
            allocation.write(offset + start, &chunk[..chunk.len().min(bytes - start)]);
        }
        Ok(())
    }

    /// Copies bytes from `address`.
    ///
    /// # Errors
    /// Returns the errors of [`Self::write`], or [`MemoryError::Uninitialised`] for uninitialised bytes.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.memory.host(address, out.len())?;
        if let Some(at) = (offset..offset + out.len()).find(|&at| !allocation.is_written(at)) {
            return Err(MemoryError::Uninitialised { name: allocation.name.clone(), offset: at as u64 });
        }
        allocation.load(offset, out);
        Ok(())
    }

    /// Copies bytes from `address`, including bytes that were never written.
    ///
    /// # Errors
    /// The errors of [`Self::write`].
    pub fn read_allow_uninit(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.memory.host(address, out.len())?;
        allocation.load(offset, out);
        Ok(())
    }

    /// For each of the `bytes` bytes at `address`, whether any access has written it.
    ///
    /// # Errors
    /// The errors of [`Self::write`].
    pub fn initialised(&self, address: u64, bytes: usize) -> Result<Vec<bool>, MemoryError> {
        let (allocation, offset) = self.memory.host(address, bytes)?;
        Ok((offset..offset + bytes).map(|at| allocation.is_written(at)).collect())
    }

    /// Makes the `bytes` bytes at `address` uninitialised again.
    ///
    /// # Errors
    /// The errors of [`Self::write`].
    pub fn forget(&mut self, address: u64, bytes: usize) -> Result<(), MemoryError> {
        let (allocation, offset) = self.memory.host(address, bytes)?;
        allocation.unmark(offset, bytes);
        Ok(())
    }

    /// Runs `entry` to its end.
    ///
    /// # Errors
    /// Returns an error if a driver would refuse the launch, or if the kernel contains an instruction or a
    /// directive that the simulator does not execute, even if no thread reaches it. The kernel's own errors
    /// are in [`Outcome::reports`].
    pub fn launch(
        &mut self,
        module: &Module,
        entry: &str,
        launch: &Launch<'_>,
    ) -> Result<Outcome, LaunchError> {
        self.run(module, entry, launch, false)
    }

    /// Like [`Self::launch`], with programmatic stream serialization: the launch may begin before the launch
    /// before it has ended. Its threads execute `griddepcontrol.wait` before they read what that launch
    /// wrote, before they write, and before they end.
    ///
    /// # Errors
    /// The errors of [`Self::launch`].
    pub fn launch_dependent(
        &mut self,
        module: &Module,
        entry: &str,
        launch: &Launch<'_>,
    ) -> Result<Outcome, LaunchError> {
        self.run(module, entry, launch, true)
    }

    fn run(
        &mut self,
        module: &Module,
        entry: &str,
        launch: &Launch<'_>,
        dependent: bool,
    ) -> Result<Outcome, LaunchError> {
        let known = || module.entries().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
        let unknown = || LaunchError::UnknownEntry { name: entry.into(), known: known() };
        let info = module.entry(entry).ok_or_else(unknown)?;
        let index = module.function(entry).ok_or_else(unknown)?;
        if !self.programs.contains_key(&(module.id, index)) {
            decode::check(module, index)?;
        }
        launch.check(&self.profile, info)?;
        self.load(module);
        self.memory.begin_launch(dependent);
        let decoded = || Arc::new(decode::program(module, index, &self.modules[&module.id]));
        let program = Arc::clone(self.programs.entry((module.id, index)).or_insert_with(decoded));
        if let Some(decode::Unsupported { line, instruction: text, reason }) =
            program.refused.first().cloned()
        {
            return Err(LaunchError::Unsupported { line, text, reason });
        }
        let frames = program.functions.iter().map(|function| function.frame_bytes);
        if let Some(bytes) = frames.max().filter(|&bytes| bytes > LOCAL_LIMIT) {
            return Err(LaunchError::LocalMemory { name: entry.into(), bytes, limit: LOCAL_LIMIT });
        }
        let threads = launch.block.iter().product::<u32>();
        let context = Context {
            module,
            program: &program,
            memory: &self.memory,
            options: &self.options,
            profile: &self.profile,
            kernel: entry,
            params: launch.params,
            grid: launch.grid,
            block: launch.block,
            threads,
            warps: threads.div_ceil(32) as usize,
            dynamic_shared: launch.dynamic_smem,
            registers: launch.registers_of_thread(&self.profile, info),
            param_align: info.param_align,
            progress: &Counter::new(launch.grid, self.watcher.as_deref()),
            released: &Released::default(),
            dependent,
        };
        exec::run(&context)
    }

    /// Allocates the module's global variables, once.
    fn load(&mut self, module: &Module) {
        if self.modules.contains_key(&module.id) {
            return;
        }
        let mut symbols = decode::Symbols::new();
        let placed = |v: &&Variable| matches!(v.space, Space::Global | Space::Const) && !v.opaque;
        for variable in module.globals.iter().filter(placed) {
            let Ok(address) =
                self.memory.alloc(&variable.name, variable.size as usize, variable.align as usize, None)
            else {
                continue;
            };
            if let Ok((allocation, _)) = self.memory.host(address, 0) {
                // The bytes of variables without an initialiser are zero.
                let mut bytes = variable.init.clone();
                bytes.resize(variable.size as usize, 0);
                allocation.write(0, &bytes);
            }
            if let Some(allocation) = self.memory.allocations.last_mut() {
                allocation.read_only = variable.space == Space::Const;
            }
            symbols.insert(variable.name.clone(), address);
        }
        for variable in module.globals.iter().filter(placed) {
            for relocation in &variable.relocations {
                self.relocate(module, &symbols, &variable.name, relocation);
            }
        }
        self.modules.insert(module.id, symbols);
    }

    /// Writes an address into the initialiser of `variable`.
    fn relocate(&self, module: &Module, symbols: &decode::Symbols, variable: &str, relocation: &Relocation) {
        let Relocation { at, bytes, symbol, addend, shift } = relocation;
        let function = || module.function(symbol).map(decode::code_address);
        let address = symbols.get(symbol).copied().or_else(function);
        if let (Some(&base), Some(address)) = (symbols.get(variable), address)
            && let Ok((allocation, offset)) = self.memory.host(base, at + bytes)
        {
            let value = address.wrapping_add_signed(*addend) >> shift;
            allocation.write(offset + at, &value.to_le_bytes()[..*bytes]);
        }
    }
}
