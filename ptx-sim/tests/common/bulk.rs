//! Runs one bulk copy of one thread.

use ptx_sim::{Gpu, Launch, Module, Options, Outcome, Profile};

/// The words of the opcode of a copy from device to shared memory.
pub const LOAD: &str = "shared::cluster.global.mbarrier::complete_tx::bytes";
/// Number of bytes of shared memory that a test reads or writes.
pub const IMAGE: usize = 8192;

/// Runs a kernel in which one thread executes `copy`. In `copy`, `map` is the address of the tensor map, and
/// `g` is the address of the tensor. `s` is the address of shared memory, and `bar` is the address of an
/// mbarrier behind it, which expects one arrival. The kernel fills shared memory from `image` before the
/// copy, and writes it back after the copy. Returns the bytes of the tensor and the image.
pub fn run(map: &[u64; 16], tensor: &[u8], copy: &str, bytes: u32) -> (Outcome, Vec<u8>, Vec<u8>) {
    let text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n.extern .shared .align 1024 .b8 tile[];
        .visible .entry k(.param .align 64 .b8 maps[128], .param .u64 in, .param .u64 image) {{
        .reg .b64 map, g, o; .reg .b32 s, t, x, v, bar; .reg .pred p;
        mov.u64 map, maps; cvta.param.u64 map, map; ld.param.u64 g, [in]; mov.u32 s, tile; mov.u32 x, %tid.x;
        mov.u32 t, x;
        FILL: shl.b32 v, x, 2; cvt.u64.u32 o, v; add.u32 v, v, s; ld.param.u64 g, [image]; add.u64 o, o, g;
        ld.global.b32 bar, [o]; st.shared.b32 [v], bar; add.u32 x, x, 32; setp.lt.u32 p, x, {words};
        @p bra FILL;
        fence.proxy.async; bar.warp.sync -1;
        ld.param.u64 g, [in]; add.u32 bar, s, {IMAGE}; setp.ne.u32 p, t, 0; @p bra BACK;
        mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {bytes};
        prefetch.tensormap [map];
        {copy}
        WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [bar], 0; @!p bra WAIT;
        BACK: bar.warp.sync -1; mov.u32 x, t; ld.param.u64 g, [image];
        NEXT: shl.b32 v, x, 2; cvt.u64.u32 o, v; add.u32 v, v, s; add.u64 o, o, g;
        ld.shared.b32 bar, [v]; st.global.b32 [o], bar; add.u32 x, x, 32; setp.lt.u32 p, x, {words};
        @p bra NEXT;
        ret; }}",
        words = IMAGE / 4,
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), Options::default());
    let from = gpu.alloc("tensor", tensor.len(), 256).unwrap();
    assert_eq!(from, BASE);
    gpu.write(from, tensor).unwrap();
    let image = gpu.alloc("image", IMAGE, 256).unwrap();
    gpu.write(image, &(0..IMAGE).map(|i| (i * 31 % 253) as u8).collect::<Vec<_>>()).unwrap();
    let params = [map.map(u64::to_le_bytes).concat(), [from, image].map(u64::to_le_bytes).concat()].concat();
    let launch = Launch { dynamic_smem: IMAGE as u32 + 16, ..Launch::new([1; 3], [32, 1, 1], &params) };
    let outcome = gpu.launch(&module, "k", &launch).unwrap();
    let (mut tensor, mut shared) = (vec![0; tensor.len()], vec![0; IMAGE]);
    gpu.read(from, &mut tensor).unwrap();
    gpu.read(image, &mut shared).unwrap();
    (outcome, tensor, shared)
}

/// The first address that allocations with an alignment of 256 get on a fresh device.
pub const BASE: u64 = (1 << 36) + 256;

/// The bytes of a tensor; neighbouring bytes differ.
pub fn tensor() -> Vec<u8> {
    (0..8192).map(|i| (i * 37 % 251) as u8).collect()
}
