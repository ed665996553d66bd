//! Device memory, simulated by host memory, so that tests can compare copies.
use crate::api::{Out, driver_functions};
use crate::state::{INVALID_VALUE, Kind, OUT_OF_MEMORY, Refusal, State, refuse};

/// Maximum bytes of an allocation.
const LARGEST: usize = 1 << 30;

/// The content of new memory: NaNs in f16, bf16 and f32, and invalid lengths. A driver promises no content.
const POISON: u128 = u128::MAX;

/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: u32 = 2;

/// `CUDA_MEMCPY2D`. Only rows from one device address to another are known.
#[repr(C)]
pub struct Copy2D {
    from_x: usize,
    from_y: usize,
    from_memory: u32,
    from_host: usize,
    from: u64,
    from_array: usize,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_memory: u32,
    to_host: usize,
    to: u64,
    to_array: usize,
    to_pitch: usize,
    width: usize,
    height: usize,
}

impl State {
    /// Allocates memory of the current context.
    fn allocate(&mut self, bytes: usize) -> Result<u64, Refusal> {
        if bytes == 0 {
            return refuse(INVALID_VALUE, "0 bytes");
        }
        if bytes > LARGEST {
            return refuse(OUT_OF_MEMORY, format!("{bytes} bytes"));
        }
        let block = vec![POISON; bytes.div_ceil(16)];
        let (context, address) = (self.current()?, block.as_ptr().addr());
        self.objects.insert(address, crate::state::Object { kind: Kind::Memory(block, bytes), context });
        Ok(address as u64)
    }

    fn free(&mut self, address: u64) -> Result<(), Refusal> {
        self.own(address as usize, "memory")?;
        self.objects.remove(&(address as usize));
        Ok(())
    }

    /// Returns the host's pointer to `bytes` bytes at `address`. The bytes must lie in one allocation of the
    /// current context.
    fn bytes(&mut self, address: u64, bytes: usize) -> Result<*mut u8, Refusal> {
        let address = address as usize;
        let below = self.objects.range(..=address).next_back().map_or(0, |(start, _)| *start);
        let Kind::Memory(block, len) = &mut self.own(below, "memory")?.kind else {
            return refuse(INVALID_VALUE, "no memory");
        };
        if address - below > *len || bytes > *len - (address - below) {
            return refuse(
                INVALID_VALUE,
                format!("{bytes} bytes at {address:#x} reach beyond {len} at {below:#x}"),
            );
        }
        Ok(block.as_mut_ptr().cast::<u8>().wrapping_add(address - below))
    }

    fn set(&mut self, address: u64, byte: u8, bytes: usize) -> Result<(), Refusal> {
        let to = self.bytes(address, bytes)?;
        // SAFETY: `to` has `bytes` bytes of one allocation.
        unsafe { to.write_bytes(byte, bytes) };
        Ok(())
    }

    /// Returns a copy of `bytes` bytes at `address`.
    pub fn copy(&mut self, address: u64, bytes: usize) -> Result<Vec<u8>, Refusal> {
        let from = self.bytes(address, bytes)?;
        // SAFETY: `from` has `bytes` bytes of one allocation.
        Ok(unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec())
    }

    pub fn write(&mut self, to: u64, from: *const u8, bytes: usize) -> Result<(), Refusal> {
        let to = self.bytes(to, bytes)?;
        // SAFETY: `to` has `bytes` bytes of one allocation; the caller of the driver promises the source.
        unsafe { to.copy_from(from, bytes) };
        Ok(())
    }

    fn read(&mut self, to: *mut u8, from: u64, bytes: usize) -> Result<(), Refusal> {
        let from = self.bytes(from, bytes)?;
        // SAFETY: `from` has `bytes` bytes of one allocation; the caller of the driver promises the target.
        unsafe { to.copy_from(from, bytes) };
        Ok(())
    }
}

driver_functions! {
    cuMemGetInfo_v2 |state, free: Out<usize>, total: Out<usize>| {
        state.current()?;
        free.set(60 << 30)?;
        total.set(64 << 30)
    };
    cuMemAlloc_v2 |state, address: Out<u64>, bytes: usize| address.set(state.allocate(bytes)?);
    cuMemAllocAsync |state, address: Out<u64>, bytes: usize, _stream: usize| {
        address.set(state.allocate(bytes)?)
    };
    cuMemFree_v2 |state, address: u64| state.free(address);
    cuMemFreeAsync |state, address: u64, _stream: usize| state.free(address);
    cuMemcpyHtoD_v2 |state, to: u64, from: *const u8, bytes: usize| state.write(to, from, bytes);
    cuMemcpyHtoDAsync_v2 |state, to: u64, from: *const u8, bytes: usize, _stream: usize| {
        state.write(to, from, bytes)
    };
    cuMemcpyDtoH_v2 |state, to: *mut u8, from: u64, bytes: usize| state.read(to, from, bytes);
    cuMemcpyDtoHAsync_v2 |state, to: *mut u8, from: u64, bytes: usize, _stream: usize| {
        state.read(to, from, bytes)
    };
    cuMemcpy2DAsync_v2 |state, copy: *const Copy2D, _stream: usize| {
        // SAFETY: the caller of the driver promises a struct.
        let Some(copy) = (unsafe { copy.as_ref() }) else { return refuse(INVALID_VALUE, "no copy") };
        let is_of_devices = [copy.from_memory, copy.to_memory] == [DEVICE; 2];
        if copy.from_pitch < copy.width || copy.to_pitch < copy.width || !is_of_devices {
            return refuse(INVALID_VALUE, "a copy with a pitch below its width, or not of device memory");
        }
        (0..copy.height).try_for_each(|row| {
            let data = state.copy(copy.from + (row * copy.from_pitch) as u64, copy.width)?;
            state.write(copy.to + (row * copy.to_pitch) as u64, data.as_ptr(), copy.width)
        })
    };
    cuMemsetD8_v2 |state, address: u64, byte: u8, bytes: usize| state.set(address, byte, bytes);
    cuMemsetD8Async |state, address: u64, byte: u8, bytes: usize, _stream: usize| {
        state.set(address, byte, bytes)
    };
    cuMemsetD32Async |state, address: u64, word: u32, words: usize, _stream: usize| {
        (0..words).try_for_each(|n| state.write(address + 4 * n as u64, word.to_ne_bytes().as_ptr(), 4))
    };
}
