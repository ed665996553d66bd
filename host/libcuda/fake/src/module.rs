//! Modules, their functions, and launches.
use crate::api::{In, Out, Text, driver_functions};
use crate::state::{
    INVALID_CONTEXT, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, Kind, NOT_FOUND, Refusal, State, refuse,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    _smem: c_uint,
    stream: usize,
    /// The first words of the first attribute: its number, padding, its value.
    attributes: In<[c_int; 3]>,
    count: c_uint,
}

/// Records a launch.
fn enqueue(
    state: &mut State,
    function: usize,
    [grid, block]: [[c_uint; 3]; 2],
    stream: usize,
    params: usize,
    how: &str,
) -> Result<(), Refusal> {
    let Kind::Function { name, .. } = &state.own(function, "function")?.kind else {
        return refuse(INVALID_HANDLE, "no function");
    };
    let name = name.clone();
    if grid.contains(&0) || block.contains(&0) || params == 0 {
        return refuse(INVALID_VALUE, "a launch of nothing");
    }
    let context = state.current()?;
    if stream > 2 && state.object(stream, "stream")?.context != context {
        return refuse(INVALID_CONTEXT, "a stream of another context");
    }
    let [x, y, z] = grid;
    state.calls.push(format!("launch {name} {x} {y} {z} on {stream:#x}{how}"));
    Ok(())
}

/// Returns PTX text up to its NUL. A text with the word "broken" does not compile.
fn image(image: *const c_void) -> Result<Vec<u8>, Refusal> {
    // SAFETY: the caller of the driver promises text that ends with NUL, or an ELF file, which contains a
    // NUL.
    let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) }.to_bytes().to_vec();
    if text.windows(6).any(|word| word == b"broken") {
        return refuse(INVALID_IMAGE, "a broken image");
    }
    Ok(text)
}

driver_functions! {
    cuModuleLoadData |state, module: Out<usize>, data: *const c_void| {
        let kind = Kind::Module(image(data)?);
        module.set(state.make(kind)?)
    };
    cuModuleLoadDataEx |
        state, module: Out<usize>, data: *const c_void, _options: c_uint, _names: usize, _values: usize
    | {
        let kind = Kind::Module(image(data)?);
        module.set(state.make(kind)?)
    };
    cuModuleUnload |state, module: usize| {
        state.own(module, "module")?;
        state.objects.retain(|handle, object| {
            *handle != module && !matches!(object.kind, Kind::Function { module: of, .. } if of == module)
        });
        Ok(())
    };
    cuModuleGetFunction |state, function: Out<usize>, module: usize, name: Text| {
        let name = name.get();
        let Kind::Module(image) = &state.own(module, "module")?.kind else {
            return refuse(INVALID_HANDLE, "no module");
        };
        if name.is_empty() || !image.windows(name.len()).any(|part| part == name.as_bytes()) {
            return refuse(NOT_FOUND, format!("no function {name}"));
        }
        function.set(state.make(Kind::Function { module, name })?)
    };
    cuFuncGetAttribute |state, value: Out<c_int>, _attribute: c_int, function: usize| {
        state.own(function, "function")?;
        value.set(0)
    };
    cuFuncSetAttribute |state, function: usize, _attribute: c_int, _value: c_int| {
        state.own(function, "function").map(|_| ())
    };
    cuOccupancyMaxActiveBlocksPerMultiprocessor |
        state, blocks: Out<c_int>, function: usize, _threads: c_int, _smem: usize
    | {
        state.own(function, "function")?;
        blocks.set(1)
    };
    cuTensorMapEncodeTiled |
        state, map: usize, element: c_int, rank: c_uint, address: u64, dims: usize, strides: usize,
        box_dims: usize, element_strides: usize, interleave: c_int, swizzle: c_int, l2: c_int, fill: c_int
    | {
        state.current()?;
        let misplaced = !map.is_multiple_of(64) || !address.is_multiple_of(16);
        let wrong = misplaced || ![4, 5].contains(&rank) || ![6, 9].contains(&element);
        if wrong || [map, dims, strides, box_dims, element_strides].contains(&0) {
            return refuse(INVALID_VALUE, "no such tensor map");
        }
        state.calls.push(format!("map {element} at {address:#x}, {interleave} {swizzle} {l2} {fill}"));
        Ok(())
    };
    cuLaunchKernel |
        state, function: usize, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, _smem: c_uint, stream: usize, params: usize, _extra: usize
    | {
        let shape = [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]];
        enqueue(state, function, shape, stream, params, "")
    };
    cuLaunchKernelEx |state, config: In<Config>, function: usize, params: usize, _extra: usize| {
        let Config { grid, block, stream, attributes, count, .. } = config.get()?;
        // The attribute is `PROGRAMMATIC_STREAM_SERIALIZATION`, with the value 1.
        if count != 1 || attributes.get()? != [6, 0, 1] {
            return refuse(INVALID_VALUE, "no such attribute");
        }
        enqueue(state, function, [grid, block], stream, params, " early")
    };
}
