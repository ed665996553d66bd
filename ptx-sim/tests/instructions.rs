//! Runs one instruction at a time and compares the result with a known answer.

use ptx_sim::{Gpu, Launch, Module, Options, Profile};

/// In a case, the registers `a b c` and `A B C` hold the inputs with 32 and 64 bits, and `h i j` hold them
/// with 16 bits; `d`, `D` or `k` (16 bits) receives the result, and `p q` are predicates.
fn run(body: &str, inputs: [u64; 3]) -> u64 {
    let text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) \
         {{\n.reg .b64 A, B, C, D, I, O; .reg .b32 a, b, c, d, e, zero; .reg .b16 h, i, j, k; .reg .pred p, \
         q;\nld.param.u64 I, [in]; ld.param.u64 O, [out];\nld.global.u64 A, [I]; ld.global.u64 B, [I+8]; \
         ld.global.u64 C, [I+16];\ncvt.u32.u64 a, A; cvt.u32.u64 b, B; cvt.u32.u64 c, C; cvt.u16.u64 h, A; \
         cvt.u16.u64 i, B; cvt.u16.u64 j, C;\nmov.u32 d, 0; mov.u64 D, 0; mov.u16 k, 0; mov.u32 zero, \
         0;\n{body}\nst.global.u32 [O], d; st.global.u64 [O+8], D; st.global.u16 [O+16], k; ret; }}"
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{body}: {error}"));
    let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), Options::default());
    let input = gpu.alloc("in", 24, 256).unwrap();
    let output = gpu.alloc("out", 24, 256).unwrap();
    gpu.fill(output, 0, 24).unwrap();
    gpu.write(input, &inputs.map(u64::to_le_bytes).concat()).unwrap();
    let params = [input, output].map(u64::to_le_bytes).concat();
    let launch = Launch::new([1; 3], [1, 1, 1], &params);
    let outcome = gpu.launch(&module, "k", &launch).unwrap_or_else(|error| panic!("{body}: {error}"));
    assert!(outcome.reports.is_empty(), "{body}: {}", outcome.reports[0]);
    let mut bytes = [0; 18];
    gpu.read(output, &mut bytes).unwrap();
    let part = |range: std::ops::Range<usize>| {
        bytes[range].iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
    };
    part(0..4) | part(8..16) | part(16..18)
}

fn check(cases: &[(&str, [u64; 3], u64)]) {
    for &(body, inputs, expected) in cases {
        let found = run(body, inputs);
        assert_eq!(found, expected, "{body} on {inputs:#x?}: {found:#x}, not {expected:#x}");
    }
}

/// The bits of a float.
const fn f(x: f32) -> u64 {
    x.to_bits() as u64
}

const fn g(x: f64) -> u64 {
    x.to_bits()
}

/// The bits of a negative 32-bit number.
const fn n(x: i32) -> u64 {
    x as u32 as u64
}

const NAN: u64 = 0x7fff_ffff;

#[test]
fn integer_arithmetic() {
    check(&[
        ("add.s32 d, a, b;", [n(-1), 3, 0], 2),
        ("add.u64 D, A, B;", [u64::MAX, 3, 0], 2),
        ("add.s16 k, h, i;", [0xffff, 2, 0], 1),
        ("add.sat.s32 d, a, b;", [0x7fff_ffff, 1, 0], 0x7fff_ffff),
        ("sub.s32 d, a, b;", [3, 5, 0], n(-2)),
        ("sub.s64 D, A, B;", [3, 5, 0], (-2i64) as u64),
        ("mul.lo.s32 d, a, b;", [n(-3), 7, 0], n(-21)),
        ("mul.hi.u32 d, a, b;", [0x8000_0000, 6, 0], 3),
        ("mul.hi.s32 d, a, b;", [n(-1), 6, 0], n(-1)),
        ("mul.hi.u64 D, A, B;", [1 << 63, 6, 0], 3),
        ("mul.wide.u32 D, a, b;", [0xffff_ffff, 0xffff_ffff, 0], 0xffff_fffe_0000_0001),
        ("mul.wide.s32 D, a, b;", [n(-2), 3, 0], (-6i64) as u64),
        ("mul.wide.u16 d, h, i;", [0xffff, 0xffff, 0], 0xfffe_0001),
        ("mad.lo.s32 d, a, b, c;", [3, 4, 5], 17),
        ("mad.lo.s64 D, A, B, C;", [3, 4, 5], 17),
        ("mad.wide.u32 D, a, b, C;", [0xffff_ffff, 2, 3], 0x2_0000_0001),
        ("mad.hi.u32 d, a, b, c;", [0x8000_0000, 2, 5], 6),
        ("div.u32 d, a, b;", [7, 2, 0], 3),
        ("div.s32 d, a, b;", [n(-7), 2, 0], n(-3)),
        ("rem.u32 d, a, b;", [7, 4, 0], 3),
        ("rem.s32 d, a, b;", [n(-7), 4, 0], n(-3)),
        ("min.u32 d, a, b;", [n(-1), 4, 0], 4),
        ("min.s32 d, a, b;", [n(-1), 4, 0], n(-1)),
        ("max.s32 d, a, b;", [n(-1), 4, 0], 4),
        ("min.relu.s32 d, a, b;", [n(-1), 4, 0], 0),
        ("min.relu.s32 d, a, b;", [9, 4, 0], 4),
        ("max.relu.s32 d, a, b;", [n(-1), n(-4), 0], 0),
        ("max.u64 D, A, B;", [9, 4, 0], 9),
        ("mul24.lo.u32 d, a, b;", [0x1000_0003, 5, 0], 15),
        ("mul24.lo.s32 d, a, b;", [0x00ff_ffff, 5, 0], n(-5)),
        ("mul24.hi.u32 d, a, b;", [0x00ff_ffff, 0x1_0000, 0], 0xff_ffff),
        ("mul24.hi.s32 d, a, b;", [0x00ff_ffff, 0x1_0000, 0], n(-1)),
        ("mad24.lo.u32 d, a, b, c;", [3, 5, 7], 22),
        ("mad24.hi.s32 d, a, b, c;", [0x00ff_ffff, 0x1_0000, 3], 2),
        ("add.cc.u32 d, a, b; addc.u32 d, zero, 1;", [n(-1), 1, 0], 2),
        ("add.cc.u32 a, a, b; addc.cc.u32 d, a, c; addc.u32 d, zero, 0;", [n(-1), 1, n(-1)], 1),
        ("add.cc.s64 D, A, B; addc.s64 D, D, 0;", [u64::MAX, 2, 0], 2),
        ("sub.cc.u32 d, a, b; subc.u32 d, a, 0;", [5, 6, 0], 4),
        ("sub.cc.u64 D, A, B; subc.u64 D, A, 0;", [6, 6, 0], 6),
        ("mad.lo.cc.u32 d, a, b, c; madc.hi.u32 d, a, b, c;", [n(-1), 2, 2], 4),
        ("neg.s32 d, a;", [5, 0, 0], n(-5)),
        ("abs.s32 d, a;", [n(-5), 0, 0], 5),
        ("sad.u32 d, a, b, c;", [3, 5, 1], 3),
        ("dp4a.u32.u32 d, a, b, c;", [0x0102_0304, 0x0101_0101, 5], 15),
        ("dp4a.s32.s32 d, a, b, c;", [0xff, 0x02, 5], 3),
    ]);
}

#[test]
fn bits_and_shifts() {
    check(&[
        ("and.b32 d, a, b;", [0b1100, 0b1010, 0], 0b1000),
        ("or.b32 d, a, b;", [0b1100, 0b1010, 0], 0b1110),
        ("xor.b64 D, A, B;", [0b1100, 0b1010, 0], 0b0110),
        ("not.b32 d, a;", [0, 0, 0], 0xffff_ffff),
        ("shl.b32 d, a, b;", [3, 4, 0], 48),
        ("shl.b32 d, a, b;", [3, 32, 0], 0),
        ("shl.b64 D, A, b;", [3, 40, 0], 3 << 40),
        ("shr.u32 d, a, b;", [0x8000_0000, 31, 0], 1),
        ("shr.s32 d, a, b;", [0x8000_0000, 40, 0], 0xffff_ffff),
        ("shr.s64 D, A, b;", [1 << 63, 63, 0], u64::MAX),
        ("shr.u64 D, A, b;", [1 << 63, 64, 0], 0),
        ("shf.l.wrap.b32 d, a, b, c;", [0x8000_0000, 1, 1], 3),
        ("shf.r.wrap.b32 d, a, b, c;", [2, 1, 1], 0x8000_0001),
        ("shf.r.clamp.b32 d, a, b, c;", [2, 7, 40], 7),
        ("bfe.u32 d, a, b, c;", [0xabcd, 4, 8], 0xbc),
        ("bfe.s32 d, a, b, c;", [0xabcd, 12, 4], n(-6)),
        ("bfe.s32 d, a, b, c;", [0x8000_0000, 28, 8], n(-8)),
        ("bfe.u64 D, A, b, c;", [0xabcd << 40, 44, 8], 0xbc),
        ("bfi.b32 d, a, b, 8, 4;", [0x5, 0xffff, 0], 0xf5ff),
        ("brev.b32 d, a;", [1, 0, 0], 0x8000_0000),
        ("popc.b32 d, a;", [0xf0f0, 0, 0], 8),
        ("popc.b64 d, A;", [u64::MAX, 0, 0], 64),
        ("clz.b32 d, a;", [1, 0, 0], 31),
        ("bfind.u32 d, a;", [0x10, 0, 0], 4),
        ("bfind.u32 d, a;", [0, 0, 0], 0xffff_ffff),
        ("prmt.b32 d, a, b, 0x5410;", [0x2222_1111, 0x4444_3333, 0], 0x3333_1111),
        ("prmt.b32 d, a, b, 0x0008;", [0x80, 0, 0], 0x8080_80ff),
        ("lop3.b32 d, a, b, c, 0x96;", [0b1100, 0b1010, 0b0110], 0),
        ("lop3.b32 d, a, b, c, 0x80;", [0b1100, 0b1010, 0b1110], 0b1000),
        ("mov.b64 {_, d}, A;", [0x1234_5678_0000_0000, 0, 0], 0x1234_5678),
        ("mov.b64 D, {a, b};", [1, 2, 0], 0x2_0000_0001),
        ("mov.b32 d, {h, i};", [1, 2, 0], 0x2_0001),
        ("mov.b32 {_, k}, a;", [0x7_0001, 0, 0], 7),
        ("mov.u32 d, %tid.x;", [0, 0, 0], 0),
        ("mov.u32 d, %ntid.x;", [0, 0, 0], 1),
        ("mov.u32 d, WARP_SZ;", [0, 0, 0], 32),
        ("mov.u32 d, -1;", [0, 0, 0], 0xffff_ffff),
        ("mov.f32 d, 0f3F800000;", [0, 0, 0], f(1.0)),
        ("mov.f32 d, 1.5;", [0, 0, 0], f(1.5)),
    ]);
}

#[test]
fn comparisons_and_selection() {
    check(&[
        ("setp.lt.s32 p, a, b; selp.b32 d, 1, 2, p;", [n(-1), 1, 0], 1),
        ("setp.lt.u32 p, a, b; selp.b32 d, 1, 2, p;", [n(-1), 1, 0], 2),
        ("setp.hi.u32 p, a, b; selp.b32 d, 1, 2, p;", [n(-1), 1, 0], 1),
        ("setp.eq.b64 p, A, B; selp.b64 D, A, 2, p;", [5, 5, 0], 5),
        ("setp.ne.f32 p, a, b; selp.b32 d, 1, 2, p;", [NAN, f(1.0), 0], 2),
        ("setp.neu.f32 p, a, b; selp.b32 d, 1, 2, p;", [NAN, f(1.0), 0], 1),
        ("setp.ltu.f32 p, a, b; selp.b32 d, 1, 2, p;", [NAN, f(1.0), 0], 1),
        ("setp.gt.f32 p, a, b; selp.b32 d, 1, 2, p;", [NAN, f(1.0), 0], 2),
        ("setp.nan.f32 p, a, b; selp.b32 d, 1, 2, p;", [NAN, f(1.0), 0], 1),
        ("setp.num.f32 p, a, b; selp.b32 d, 1, 2, p;", [f(2.0), f(1.0), 0], 1),
        ("setp.eq.f16 p, h, i; selp.b32 d, 1, 2, p;", [0x8000, 0, 0], 1),
        ("setp.lt.s32 p|q, a, b; selp.b32 d, 1, 2, q;", [1, 2, 0], 2),
        ("setp.eq.s32 p, a, a; setp.lt.and.s32 p, a, b, p; selp.b32 d, 1, 2, p;", [1, 2, 0], 1),
        ("setp.ne.s32 q, a, a; setp.lt.or.s32 p, a, b, q; selp.b32 d, 1, 2, p;", [3, 2, 0], 2),
        ("setp.lt.s32 p, a, b; not.pred q, p; selp.b32 d, 1, 2, q;", [1, 2, 0], 2),
        ("setp.eq.s32 q, a, b; setp.lt.and.s32 p, a, b, !q; selp.b32 d, 1, 2, p;", [1, 2, 0], 1),
        ("setp.lt.s32 p, a, b; selp.b32 d, 1, 2, !p;", [1, 2, 0], 2),
        ("setp.lt.s32 p, a, b; @p mov.u32 d, 7;", [1, 2, 0], 7),
        ("setp.lt.s32 p, a, b; @!p mov.u32 d, 7;", [1, 2, 0], 0),
        ("set.lt.u32.s32 d, a, b;", [n(-5), 2, 0], 0xffff_ffff),
        ("slct.b32.s32 d, a, b, c;", [1, 2, n(-1)], 2),
    ]);
}

#[test]
fn floats() {
    check(&[
        ("add.rn.f32 d, a, b;", [f(1.5), f(2.25), 0], f(3.75)),
        ("add.f32 d, a, b;", [f(f32::INFINITY), f(f32::NEG_INFINITY), 0], NAN),
        ("add.ftz.f32 d, a, b;", [1, f(0.0), 0], 0),
        ("add.f32 d, a, b;", [1, f(0.0), 0], 1),
        ("sub.rn.f32 d, a, b;", [f(1.0), f(3.0), 0], f(-2.0)),
        ("mul.rn.f32 d, a, b;", [f(1.5), f(-2.0), 0], f(-3.0)),
        ("mul.sat.f32 d, a, b;", [f(1.5), f(2.0), 0], f(1.0)),
        // The instruction is fused, so the low bits of the product survive.
        ("fma.rn.f32 d, a, b, c;", [0x3f80_0001, 0x3f80_0001, 0xbf80_0002], 0x2880_0000),
        ("fma.rn.ftz.f32 d, a, b, c;", [f(2.0), f(3.0), f(1.0)], f(7.0)),
        ("max.f32 d, a, b;", [NAN, f(1.0), 0], f(1.0)),
        ("max.NaN.f32 d, a, b;", [NAN, f(1.0), 0], NAN),
        ("max.f32 d, a, b;", [f(-0.0), f(0.0), 0], f(0.0)),
        ("min.f32 d, a, b;", [f(0.0), f(-0.0), 0], f(-0.0)),
        ("min.f32 d, a, b;", [NAN, NAN, 0], NAN),
        ("neg.f32 d, a;", [f(1.0), 0, 0], f(-1.0)),
        ("abs.f32 d, a;", [f(-1.0), 0, 0], f(1.0)),
        ("div.rn.f32 d, a, b;", [f(1.0), f(4.0), 0], f(0.25)),
        ("rcp.approx.ftz.f32 d, a;", [f(0.0), 0, 0], f(f32::INFINITY)),
        ("sqrt.rn.f32 d, a;", [f(9.0), 0, 0], f(3.0)),
        ("rsqrt.approx.ftz.f32 d, a;", [f(4.0), 0, 0], f(0.5)),
        ("sqrt.approx.ftz.f32 d, a;", [1, 0, 0], 0),
        ("ex2.approx.ftz.f32 d, a;", [f(-3.0), 0, 0], f(0.125)),
        ("ex2.approx.ftz.f32 d, a;", [f(f32::NEG_INFINITY), 0, 0], 0),
        ("ex2.approx.ftz.f32 d, a;", [f(-130.0), 0, 0], 0),
        ("ex2.approx.ftz.f32 d, a;", [f(200.0), 0, 0], f(f32::INFINITY)),
        ("ex2.approx.ftz.f32 d, a;", [f(0.5), 0, 0], f(std::f32::consts::SQRT_2)),
        ("lg2.approx.ftz.f32 d, a;", [f(8.0), 0, 0], f(3.0)),
        ("lg2.approx.ftz.f32 d, a;", [f(0.0), 0, 0], f(f32::NEG_INFINITY)),
        ("tanh.approx.f32 d, a;", [f(0.0), 0, 0], 0),
        ("copysign.f32 d, a, b;", [f(-2.0), f(3.0), 0], f(-3.0)),
        ("add.f64 D, A, B;", [g(1.5), g(2.25), 0], g(3.75)),
        ("fma.rn.f64 D, A, B, C;", [g(2.0), g(3.0), g(1.0)], g(7.0)),
        ("add.f16x2 d, a, b;", [0x3c00_4000, 0x3c00_3c00, 0], 0x4000_4200),
        ("mul.bf16x2 d, a, b;", [0x4000_3f80, 0x4000_4000, 0], 0x4080_4000),
        ("fma.rn.f16 k, h, i, j;", [0x4000, 0x4200, 0x3c00], 0x4700),
        ("max.f16x2 d, a, b;", [0x3c00_c000, 0x4000_7fff, 0], 0x4000_c000),
        ("neg.f16x2 d, a;", [0x3c00_bc00, 0, 0], 0xbc00_3c00),
    ]);
}

#[test]
fn conversions() {
    check(&[
        // The first source goes to the high half.
        ("cvt.rn.f16x2.f32 d, a, b;", [f(1.0), f(2.0), 0], 0x3c00_4000),
        ("cvt.rn.bf16x2.f32 d, a, b;", [f(1.0), f(2.0), 0], 0x3f80_4000),
        ("cvt.rn.f16.f32 k, a;", [f(65520.0), 0, 0], 0x7c00),
        ("cvt.rn.f16.f32 k, a;", [f(65519.0), 0, 0], 0x7bff),
        ("cvt.rn.f16.f32 k, a;", [f(5.960_464_5e-8), 0, 0], 1),
        ("cvt.rn.f16.f32 k, a;", [f(2.980_232_2e-8), 0, 0], 0),
        ("cvt.rn.f16.f32 k, a;", [f(1.0 + 1.0 / 2048.0), 0, 0], 0x3c00),
        ("cvt.rn.f16.f32 k, a;", [NAN, 0, 0], 0x7fff),
        ("cvt.rn.bf16.f32 k, a;", [0x3f80_8000, 0, 0], 0x3f80),
        ("cvt.rn.bf16.f32 k, a;", [0x3f81_8000, 0, 0], 0x3f82),
        ("cvt.rz.bf16x2.f32 d, a, b;", [0x3f81_ffff, f(1.0), 0], 0x3f81_3f80),
        ("cvt.rn.satfinite.e4m3x2.f32 k, a, b;", [f(1.0), f(-2.0), 0], 0x38c0),
        ("cvt.rn.satfinite.e4m3x2.f32 k, a, b;", [f(464.5), f(f32::NEG_INFINITY), 0], 0x7efe),
        ("cvt.rn.satfinite.e4m3x2.f32 k, a, b;", [NAN, f(-0.0), 0], 0x7f80),
        // These numbers are halfway between 1 and 1.125, and between 1.125 and 1.25: they round to the even
        // neighbour.
        ("cvt.rn.satfinite.e4m3x2.f32 k, a, b;", [f(1.0625), f(1.1875), 0], 0x383a),
        ("cvt.rn.satfinite.e4m3x2.f32 k, a, b;", [0x3f88_0001, f(447.0), 0], 0x397e),
        // Subnormal numbers are multiples of 2^-9; the last number is just below the least normal number.
        ("cvt.rn.satfinite.e4m3x2.f32 k, a, b;", [f(0.001_953_125), f(0.000_976_562_5), 0], 0x0100),
        ("cvt.rn.satfinite.e4m3x2.f32 k, a, b;", [f(0.002_929_687_5), f(0.015), 0], 0x0208),
        ("cvt.rn.f16x2.e4m3x2 d, h;", [0x38c0, 0, 0], 0x3c00_c000),
        ("cvt.rn.f16x2.e4m3x2 d, h;", [0x7e01, 0, 0], 0x5f00_1800),
        ("cvt.rn.f16x2.e4m3x2 d, h;", [0x0788, 0, 0], 0x2300_a400),
        ("cvt.rn.f16x2.e4m3x2 d, h;", [0x7f80, 0, 0], 0x7fff_8000),
        ("cvt.f32.f16 d, h;", [0x0001, 0, 0], f(5.960_464_5e-8)),
        ("cvt.f32.f16 d, h;", [0xfc00, 0, 0], f(f32::NEG_INFINITY)),
        ("cvt.f32.bf16 d, h;", [0x4049, 0, 0], 0x4049_0000),
        ("cvt.rni.s32.f32 d, a;", [f(2.5), 0, 0], 2),
        ("cvt.rzi.s32.f32 d, a;", [f(-2.7), 0, 0], n(-2)),
        ("cvt.rmi.s32.f32 d, a;", [f(-2.1), 0, 0], n(-3)),
        ("cvt.rzi.u32.f32 d, a;", [f(-2.7), 0, 0], 0),
        ("cvt.rzi.u32.f32 d, a;", [f(1e20), 0, 0], 0xffff_ffff),
        ("cvt.rn.f32.s32 d, a;", [n(-3), 0, 0], f(-3.0)),
        ("cvt.rn.f32.u32 d, a;", [0xffff_ffff, 0, 0], f(4_294_967_296.0)),
        ("cvt.f64.f32 D, a;", [f(1.5), 0, 0], g(1.5)),
        ("cvt.rn.f32.f64 d, A;", [g(1.5), 0, 0], f(1.5)),
        ("cvt.s64.s32 D, a;", [n(-2), 0, 0], (-2i64) as u64),
        ("cvt.u64.u32 D, a;", [n(-2), 0, 0], 0xffff_fffe),
        ("cvt.u32.u64 d, A;", [0x1_2345_6789, 0, 0], 0x2345_6789),
        ("cvt.s32.s16 d, h;", [0xffff, 0, 0], n(-1)),
        ("cvt.u32.u16 d, h;", [0xffff, 0, 0], 0xffff),
        ("cvt.s32.s8 d, a;", [0x1fe, 0, 0], n(-2)),
        // The instruction extends the result to the wider register, by the type's signedness.
        ("cvt.s16.s8 d, a;", [0x1fe, 0, 0], n(-2)),
        ("cvt.s16.s32 d, a;", [0x1_8001, 0, 0], n(-0x7fff)),
        ("cvt.u16.s32 d, a;", [n(-2), 0, 0], 0xfffe),
        ("cvt.s16.s32 D, a;", [n(-2), 0, 0], (-2i64) as u64),
        ("cvt.u16.s32 D, a;", [n(-2), 0, 0], 0xfffe),
        ("cvt.s8.s16 k, h;", [0x1fe, 0, 0], 0xfffe),
        ("cvt.s32.s16 d, A;", [0x1_8001, 0, 0], n(-0x7fff)),
        ("cvt.rni.s16.f32 d, a;", [f(-5.0), 0, 0], n(-5)),
        ("cvt.rni.s8.f32 d, a;", [f(-500.0), 0, 0], n(-128)),
        ("cvt.sat.u16.s64 k, A;", [u64::MAX, 0, 0], 0),
        ("cvt.sat.s8.u32 d, a;", [300, 0, 0], 127),
        ("cvt.rmi.f64.f64 D, A;", [g(-1.5), 0, 0], g(-2.0)),
        ("cvt.rpi.f64.f64 D, A;", [g(-1.5), 0, 0], g(-1.0)),
        ("cvt.rni.f64.f64 D, A;", [g(2.5), 0, 0], g(2.0)),
        ("cvt.rzi.f16.f16 k, h;", [0x3e00, 0, 0], 0x3c00),
        ("cvt.sat.u8.s32 d, a;", [300, 0, 0], 255),
        ("cvt.rpi.f32.f32 d, a;", [f(1.2), 0, 0], f(2.0)),
        ("cvt.sat.f32.f32 d, a;", [f(-1.2), 0, 0], 0),
    ]);
}

#[test]
fn memory_and_control() {
    check(&[
        ("ld.global.u8 d, [I+1];", [0xab_cd, 0, 0], 0xab),
        ("ld.global.s8 d, [I+1];", [0xab_cd, 0, 0], n(0xabu8 as i8 as i32)),
        ("ld.global.s16 d, [I];", [0x8000, 0, 0], n(-32768)),
        ("ld.global.v2.u32 {d, e}, [I+8];", [0, 6 << 32 | 5, 0], 5),
        ("ld.global.v2.u64 {_, D}, [I];", [5, 6, 0], 6),
        ("ld.global.nc.u32 d, [I];", [5, 6, 0], 5),
        ("cvta.to.global.u64 D, I; ld.global.u32 d, [D+8]; mov.u64 D, 0;", [5, 6, 0], 6),
        (
            ".local .align 8 .b8 depot[16]; st.local.u32 [depot+4], a; ld.local.u32 d, [depot+4];",
            [5, 0, 0],
            5,
        ),
        (
            ".local .align 8 .b8 depot[16]; mov.u64 D, depot; cvta.local.u64 D, D; st.u32 [D], a; ld.u32 d, \
             [D]; mov.u64 D, 0;",
            [5, 0, 0],
            5,
        ),
        (
            ".shared .align 8 .b8 tile[16]; st.shared.u32 [tile+4], a; ld.shared.u32 d, [tile+4];",
            [5, 0, 0],
            5,
        ),
        (
            ".shared .align 8 .b8 s[16]; mov.u64 D, s; cvta.shared.u64 D, D; st.u32 [D], a; ld.u32 d, [D]; \
             mov.u64 D, 0;",
            [5, 0, 0],
            5,
        ),
        (
            ".shared .b32 s; mov.u64 D, s; cvta.shared.u64 D, D; isspacep.shared p, D; selp.b32 d, 1, 2, p; \
             mov.u64 D, 0;",
            [0; 3],
            1,
        ),
        ("atom.global.add.u32 d, [I], 3;", [5, 0, 0], 5),
        ("red.global.add.u32 [I], 3; ld.volatile.global.u32 d, [I];", [5, 0, 0], 8),
        ("red.global.add.f32 [I], b; ld.volatile.global.u32 d, [I];", [f(1.5), f(2.0), 0], f(3.5)),
        ("atom.global.cas.b32 d, [I], 5, 9; ld.volatile.global.u32 d, [I];", [5, 0, 0], 9),
        ("atom.global.exch.b64 D, [I], B;", [5, 6, 0], 5),
        ("atom.global.inc.u32 d, [I], 5; ld.volatile.global.u32 d, [I];", [5, 0, 0], 0),
        ("atom.global.dec.u32 d, [I], 5; ld.volatile.global.u32 d, [I];", [0, 0, 0], 5),
        ("red.global.min.s32 [I], b; ld.volatile.global.u32 d, [I];", [5, n(-3), 0], n(-3)),
        (
            "red.global.add.noftz.f16x2 [I], b; ld.volatile.global.u32 d, [I];",
            [0x3c00_3c00, 0x4000_3c00, 0],
            0x4200_4000,
        ),
        ("L: add.u32 d, d, 2; setp.lt.u32 p, d, 9; @p bra L;", [0; 3], 10),
        ("bra.uni M; mov.u32 d, 1; M: add.u32 d, d, 2;", [0; 3], 2),
        ("{ .reg .b32 d2; mov.u32 d2, 4; { .reg .b32 d2; mov.u32 d2, 5; } mov.u32 d, d2; }", [0; 3], 4),
        ("{ bra X; X: add.u32 d, d, 1; } { bra X; mov.u32 d, 9; X: add.u32 d, d, 1; }", [0; 3], 2),
        (
            "T: .branchtargets P0, P1; brx.idx a, T; P0: mov.u32 d, 10; bra E; P1: mov.u32 d, 11; E:",
            [1, 0, 0],
            11,
        ),
    ]);
}

#[test]
fn calls_pass_parameters_and_results() {
    let text = "
        .version 8.0\n.target sm_80\n.address_size 64
        .func (.param .b32 result) twice(.param .b32 x) {
            .reg .b32 %r<3>;
            ld.param.b32 %r1, [x]; add.s32 %r2, %r1, %r1; st.param.b32 [result], %r2; ret;
        }
        .visible .entry k(.param .u64 out) {
            .reg .b32 %r<4>; .reg .b64 %rd<4>;
            ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x;
            { // callseq 0, 0
            .param .b32 p0; .param .b32 r0;
            st.param.b32 [p0], %r1;
            call.uni (r0), twice, (p0);
            ld.param.b32 %r2, [r0];
            } // callseq 0
            mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 [%rd3], %r2; ret;
        }";
    let module = Module::parse(text).unwrap();
    let mut gpu = Gpu::new(Profile::by_name("l4").unwrap(), Options::default());
    let out = gpu.alloc("out", 4 * 64, 256).unwrap();
    let params = out.to_le_bytes();
    let launch = Launch::new([1; 3], [64, 1, 1], &params);
    let outcome = gpu.launch(&module, "k", &launch).unwrap();
    assert!(outcome.reports.is_empty(), "{}", outcome.reports[0]);
    let mut bytes = [0; 4 * 64];
    gpu.read(out, &mut bytes).unwrap();
    for (thread, value) in bytes.chunks_exact(4).enumerate() {
        assert_eq!(value, (2 * thread as u32).to_le_bytes());
    }
}
