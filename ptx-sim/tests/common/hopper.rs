//! Kernels in which warpgroups multiply two matrices.

use ptx_sim::{ElementType, Gpu, Launch, LaunchError, Module, Options, Outcome, Profile, Swizzle, TensorMap};

/// A kernel that computes `a b^T` of two f16 matrices of 64 x 256, in steps of 64 along the depth. One
/// warpgroup copies; another warpgroup multiplies and stores the result.
pub const PIPELINE: &str = include_str!("pipeline.ptx");

/// Number of rows that A and B have. Further rows are zero.
pub const ROWS: usize = 60;
pub const DEPTH: usize = 256;

/// Numbers that f16 represents exactly, and whose products f32 adds exactly.
pub fn number(matrix: usize, row: usize, k: usize) -> f32 {
    ((row * 7 + k * 5 + matrix * 3 + row * k % 11) % 17) as f32 - 8.0
}

/// The e4m3 number `x`, which e4m3 represents exactly.
pub fn e4m3(x: f32) -> u8 {
    let bits = x.to_bits();
    let magnitude = match x.abs() {
        // Zero and subnormal numbers.
        small if small < 1.0 / 64.0 => (small * 512.0) as u8,
        _ => ((bits >> 20 & 0x7ff) - ((127 - 7) << 3)) as u8,
    };
    (bits >> 24 & 0x80) as u8 | magnitude
}

pub fn f16(x: f32) -> u16 {
    half::f16::from_f32(x).to_bits()
}

/// The product that `text` computes, and the expected product.
pub struct Ran {
    pub outcome: Outcome,
    pub found: Vec<f32>,
    pub expected: Vec<f32>,
}

pub fn pipeline(
    text: &str,
    options: Options,
    change: impl Fn(&mut TensorMap<'_>),
) -> Result<Ran, LaunchError> {
    let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), options);
    let mut params = Vec::new();
    for matrix in 0..2 {
        let at = gpu.alloc(["a", "b"][matrix], ROWS * DEPTH * 2, 256).unwrap();
        let all = (0..ROWS * DEPTH).flat_map(|i| f16(number(matrix, i / DEPTH, i % DEPTH)).to_le_bytes());
        gpu.write(at, &all.collect::<Vec<_>>()).unwrap();
        let mut map = TensorMap {
            element: ElementType::F16,
            address: at,
            dims: &[DEPTH as u64, ROWS as u64],
            strides: &[DEPTH as u64 * 2],
            box_dims: &[64, 64],
            element_strides: &[1, 1],
            swizzle: Swizzle::B128,
            fill_nan: false,
        };
        change(&mut map);
        params.extend(map.encode().unwrap().map(u64::to_le_bytes).concat());
    }
    let out = gpu.alloc("out", ROWS * ROWS * 4, 256).unwrap();
    let map = TensorMap {
        element: ElementType::F32,
        address: out,
        dims: &[ROWS as u64, ROWS as u64],
        strides: &[ROWS as u64 * 4],
        box_dims: &[64, 64],
        element_strides: &[1, 1],
        swizzle: Swizzle::None,
        fill_nan: false,
    };
    params.extend(map.encode().unwrap().map(u64::to_le_bytes).concat());
    let launch = Launch {
        dynamic_smem: 50 * 1024,
        smem_opt_in: 50 * 1024,
        registers: Some(128),
        ..Launch::new([1; 3], [256, 1, 1], &params)
    };
    let outcome = gpu.launch(&module, "k", &launch)?;
    let mut bytes = vec![0; ROWS * ROWS * 4];
    gpu.read_allow_uninit(out, &mut bytes).unwrap();
    let found = bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect();
    let sum = |i: usize| (0..DEPTH).map(|k| number(0, i / ROWS, k) * number(1, i % ROWS, k)).sum();
    Ok(Ran { outcome, found, expected: (0..ROWS * ROWS).map(sum).collect() })
}
