//! Tests of instructions of a whole warp: shuffles, votes, matrix loads and products.

use ptx_sim::{Gpu, Launch, MmaArch, MmaMode, Module, Options, Profile};

/// Runs `body` in one warp. `in` contains `input`. Returns the registers `d0..d3` of each lane, as
/// `[lane][4]`.
pub fn warp(body: &str, input: &[u32], mma: MmaMode) -> Vec<[u32; 4]> {
    let text = format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) \
         {{\n.shared .align 128 .b8 tile[2048];\n.reg .b64 I, O, w; .reg .b32 t, d0, d1, d2, d3, s, x; .reg \
         .b32 %a<8>; .reg .b32 %b<8>; .reg .pred p;\nld.param.u64 I, [in]; ld.param.u64 O, [out]; mov.u32 \
         t, %tid.x; mov.u32 s, tile;\nmov.u32 d0, 0; mov.u32 d1, 0; mov.u32 d2, 0; mov.u32 d3, \
         0;\n{body}\nmul.wide.u32 w, t, 16; add.u64 O, O, w; st.global.v4.u32 [O], {{d0, d1, d2, d3}}; ret; \
         }}"
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{body}: {error}"));
    let mut gpu = Gpu::new(Profile::by_name("h200").unwrap(), Options { mma, ..Options::default() });
    let from = gpu.alloc("in", 4 * input.len().max(1), 256).unwrap();
    let to = gpu.alloc("out", 512, 256).unwrap();
    gpu.write(from, &input.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    let params = [from, to].map(u64::to_le_bytes).concat();
    let launch = Launch::new([1; 3], [32, 1, 1], &params);
    let outcome = gpu.launch(&module, "k", &launch).unwrap_or_else(|error| panic!("{body}: {error}"));
    assert!(outcome.reports.is_empty(), "{body}: {}", outcome.reports[0]);
    let mut bytes = [0; 512];
    gpu.read(to, &mut bytes).unwrap();
    let words: Vec<u32> =
        bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    words.chunks_exact(4).map(|w| [w[0], w[1], w[2], w[3]]).collect()
}

fn lanes(body: &str, expected: impl Fn(u32) -> u32) {
    for (lane, found) in warp(body, &[], MmaMode::Fast).iter().enumerate() {
        assert_eq!(found[0], expected(lane as u32), "{body}, lane {lane}");
    }
}

#[test]
fn shuffles() {
    lanes("shfl.sync.bfly.b32 d0, t, 5, 31, -1;", |lane| lane ^ 5);
    lanes("shfl.sync.idx.b32 d0, t, 7, 31, -1;", |_| 7);
    lanes("shfl.sync.up.b32 d0|p, t, 3, 0, -1;", |lane| if lane < 3 { lane } else { lane - 3 });
    lanes("shfl.sync.up.b32 d1|p, t, 3, 0, -1; selp.b32 d0, 1, 0, p; mov.u32 d1, 0;", |lane| {
        u32::from(lane >= 3)
    });
    lanes("shfl.sync.down.b32 d0, t, 3, 31, -1;", |lane| if lane > 28 { lane } else { lane + 3 });
    // These shuffles work within segments of eight lanes: the mask in bits 8 to 12 keeps the upper lane bits.
    lanes("shfl.sync.idx.b32 d0, t, 2, 0x181f, -1;", |lane| lane & 24 | 2);
    lanes("shfl.sync.down.b32 d0, t, 1, 0x1807, -1;", |lane| if lane & 7 == 7 { lane } else { lane + 1 });
}

#[test]
fn votes() {
    lanes("setp.lt.u32 p, t, 5; vote.sync.ballot.b32 d0, p, -1;", |_| 31);
    lanes("setp.lt.u32 p, t, 5; vote.sync.any.pred p, p, -1; selp.b32 d0, 1, 0, p;", |_| 1);
    lanes("setp.lt.u32 p, t, 5; vote.sync.all.pred p, p, -1; selp.b32 d0, 1, 0, p;", |_| 0);
    lanes("setp.lt.u32 p, t, 5; vote.sync.uni.pred p, !p, -1; selp.b32 d0, 1, 0, p;", |_| 0);
    lanes("activemask.b32 d0;", |_| u32::MAX);
    lanes("redux.sync.add.u32 d0, t, -1;", |_| 496);
    lanes("redux.sync.max.s32 d0, t, -1;", |_| 31);
    lanes(
        "shr.u32 x, t, 4; match.any.sync.b32 d0, x, -1;",
        |lane| if lane < 16 { 0xffff } else { 0xffff_0000 },
    );
    lanes("elect.sync _|p, -1; selp.b32 d0, 1, 0, p;", |lane| u32::from(lane == 0));
    lanes("mov.u32 d0, %lanemask_lt;", |lane| (1 << lane) - 1);
}

#[test]
fn divergence_meets_again() {
    lanes(
        "setp.lt.u32 p, t, 10; @p bra A; add.u32 d0, t, 100; bra B; A: add.u32 d0, t, 200; B: \
         activemask.b32 x; popc.b32 x, x; add.u32 d0, d0, x;",
        |lane| if lane < 10 { lane + 232 } else { lane + 132 },
    );
    // The trip count of this loop differs from lane to lane. After the loop, all lanes run together.
    lanes(
        "mov.u32 x, 0; L: add.u32 x, x, 1; setp.le.u32 p, x, t; @p bra L; activemask.b32 d0; popc.b32 d0, \
         d0; add.u32 d0, d0, x;",
        |lane| 33 + lane,
    );
    // Some lanes exit early, in the middle of a branch.
    lanes("setp.gt.u32 p, t, 40; @p exit; mov.u32 d0, 3;", |_| 3);
    // A path that ends in a panic does not keep the other lanes apart.
    for panics in ["trap;", "exit;", "trap; exit;", "bra L; L: bra M; M: exit;"] {
        lanes(
            &format!(
                "setp.lt.u32 p, t, 10; @p bra A; setp.gt.u32 p, t, 40; @p bra P; add.u32 d0, t, 100; A: \
                 vote.sync.ballot.b32 x, -1, -1; popc.b32 x, x; add.u32 d0, d0, x; bra E; P: {panics} E:"
            ),
            |lane| if lane < 10 { 32 } else { lane + 132 },
        );
    }
}

/// The 16-bit element `i` of the tile that [`fill_tile`] writes.
fn element(i: u32) -> u32 {
    (i * 7) & 0xffff
}

/// PTX in which every lane writes 16 words of the tile.
fn fill_tile() -> String {
    let mut text = "mul.lo.u32 x, t, 64; add.u32 x, x, s;".to_string();
    for word in 0..16 {
        let index = format!(
            "mul.lo.u32 d1, t, 32; add.u32 d1, d1, {}; mul.lo.u32 d2, d1, 7; and.b32 d2, d2, 65535;",
            2 * word
        );
        let high = "add.u32 d1, d1, 1; mul.lo.u32 d1, d1, 7; shl.b32 d1, d1, 16; or.b32 d2, d2, d1;";
        text += &format!("{index} {high} st.shared.u32 [x+{}], d2;", 4 * word);
    }
    text + "bar.warp.sync -1;"
}

#[test]
fn matrix_loads() {
    let fill = fill_tile();
    // Row r of matrix m is at 16 * (8 m + r): 8 elements each.
    let load = |name: &str| {
        format!(
            "{fill} mul.lo.u32 x, t, 16; add.u32 x, x, s; ldmatrix.sync.aligned.m8n8.x4{name}.shared.b16 \
             {{d0, d1, d2, d3}}, [x];"
        )
    };
    for (lane, found) in warp(&load(""), &[], MmaMode::Fast).iter().enumerate() {
        for (m, &word) in found.iter().enumerate() {
            let at = (64 * m + 8 * (lane / 4) + lane % 4 * 2) as u32;
            assert_eq!(word, element(at) | element(at + 1) << 16, "lane {lane} matrix {m}");
        }
    }
    for (lane, found) in warp(&load(".trans"), &[], MmaMode::Fast).iter().enumerate() {
        for (m, &word) in found.iter().enumerate() {
            let at = (64 * m + 8 * (lane % 4 * 2) + lane / 4) as u32;
            assert_eq!(word, element(at) | element(at + 8) << 16, "lane {lane} matrix {m} transposed");
        }
    }
    let moved = format!(
        "{fill} mul.lo.u32 x, t, 16; add.u32 x, x, s; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{d1}}, [x]; \
         movmatrix.sync.aligned.m8n8.trans.b16 d0, d1; mov.u32 d2, 0; mov.u32 d1, 0;"
    );
    let transposed = warp(&load(".trans"), &[], MmaMode::Fast);
    for (lane, found) in warp(&moved, &[], MmaMode::Fast).iter().enumerate() {
        assert_eq!(found[0], transposed[lane][0], "movmatrix lane {lane}");
    }
}

#[test]
fn matrix_stores_undo_loads() {
    let fill = fill_tile();
    let round = format!(
        "{fill} mul.lo.u32 x, t, 16; add.u32 x, x, s;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{d0, d1, d2, d3}}, [x];
        stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [x+1024], {{d0, d1, d2, d3}}; bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{d0, d1, d2, d3}}, [x+1024];"
    );
    let plain = format!(
        "{fill} mul.lo.u32 x, t, 16; add.u32 x, x, s; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{d0, d1, \
         d2, d3}}, [x];"
    );
    assert_eq!(warp(&round, &[], MmaMode::Fast), warp(&plain, &[], MmaMode::Fast));
}

/// The inputs of each lane are four A registers, two B registers, and four accumulators.
fn product(input: &[u32], ty: &str, mode: MmaMode) -> Vec<[f32; 4]> {
    let mut body = "mul.wide.u32 w, t, 40; add.u64 I, I, w;".to_string();
    for (i, name) in ["%a0", "%a1", "%a2", "%a3", "%b0", "%b1", "d0", "d1", "d2", "d3"].iter().enumerate() {
        body += &format!("ld.global.u32 {name}, [I+{}];", 4 * i);
    }
    body += &format!(
        "mma.sync.aligned.m16n8k16.row.col.f32.{ty}.{ty}.f32 {{d0, d1, d2, d3}}, {{%a0, %a1, %a2, %a3}}, \
         {{%b0, %b1}}, {{d0, d1, d2, d3}};"
    );
    warp(&body, input, mode).iter().map(|words| words.map(f32::from_bits)).collect()
}

/// The inputs are small integers, so that every mode gives the exact result.
#[test]
fn matrix_products_of_integers_are_exact() {
    let value = |i: usize| (i * 37 % 11) as f32 - 5.0;
    let a = |row: usize, k: usize| value(row * 16 + k);
    let b = |k: usize, column: usize| value(1000 + k * 8 + column);
    let c = |row: usize, column: usize| value(5000 + row * 8 + column);
    for (ty, bits) in [
        ("f16", (|x| u32::from(half::f16::from_f32(x).to_bits())) as fn(f32) -> u32),
        ("bf16", |x| x.to_bits() >> 16),
    ] {
        let pair = |low: f32, high: f32| bits(low) | bits(high) << 16;
        let mut input = Vec::new();
        for lane in 0..32 {
            let (group, two) = (lane / 4, lane % 4 * 2);
            for (row, k) in [(group, two), (group + 8, two), (group, two + 8), (group + 8, two + 8)] {
                input.push(pair(a(row, k), a(row, k + 1)));
            }
            for k in [two, two + 8] {
                input.push(pair(b(k, group), b(k + 1, group)));
            }
            input.extend(
                [c(group, two), c(group, two + 1), c(group + 8, two), c(group + 8, two + 1)]
                    .map(f32::to_bits),
            );
        }
        for mode in
            [MmaMode::Fast, MmaMode::F64, MmaMode::Exact(MmaArch::Ampere), MmaMode::Exact(MmaArch::Hopper)]
        {
            let found = product(&input, ty, mode);
            for (lane, d) in found.iter().enumerate() {
                let (group, two) = (lane / 4, lane % 4 * 2);
                for (i, (row, column)) in
                    [(group, two), (group, two + 1), (group + 8, two), (group + 8, two + 1)]
                        .into_iter()
                        .enumerate()
                {
                    let expected = c(row, column) + (0..16).map(|k| a(row, k) * b(k, column)).sum::<f32>();
                    assert_eq!(d[i], expected, "{ty} {mode:?} row {row} column {column}");
                }
            }
        }
    }
}

/// Inputs for which the tensor core rounds differently from IEEE arithmetic.
#[test]
fn exact_products_round_toward_zero_after_alignment() {
    let one = 0x3c00_u32;
    // Only element (0, 0) is set: a[0][0] * b[0][0] + c. The other terms are zero.
    let single = |a0: u32, b0: u32, c: f32, mode| {
        let mut input = vec![0; 320];
        (input[0], input[4], input[6]) = (a0, b0, c.to_bits());
        product(&input, "f16", mode)[0][0]
    };
    let tiny = 2f32.powi(-24);
    for arch in [MmaArch::Ampere, MmaArch::Hopper] {
        // The sum is 1 + 1.5 * 2^-24, which is 1 + 2^-23 rounded to nearest and 1 rounded toward zero.
        let nearly = f32::from_bits(tiny.to_bits() | 0x40_0000);
        assert_eq!(single(one, one, nearly, MmaMode::Exact(arch)), 1.0);
        assert_eq!(single(one, one, 2.0, MmaMode::Exact(arch)), 3.0);
        assert_eq!(single(one, one, f32::INFINITY, MmaMode::Exact(arch)), f32::INFINITY);
        assert!(single(0x7c00, 0, 1.0, MmaMode::Exact(arch)).is_nan(), "infinity times zero");
        // 1 - 2^-26 is truncated before the addition with 24 and with 25 fraction bits.
        assert_eq!(single(one, one, -(2f32.powi(-26)), MmaMode::Exact(arch)), 1.0);
    }
    assert_eq!(
        single(one, one, f32::from_bits(tiny.to_bits() | 0x40_0000), MmaMode::Fast),
        1.0 + 2f32.powi(-23)
    );
    // There are two terms of -2^-25 beside 1: Hopper keeps them, and the result is 1 - 2^-24; Ampere
    // truncates both.
    let mut input = vec![0; 320];
    (input[0], input[4], input[6]) = (one | 0x8200 << 16, one | 0x1400 << 16, (-(2f32.powi(-25))).to_bits());
    let ampere = product(&input, "f16", MmaMode::Exact(MmaArch::Ampere))[0][0];
    let hopper = product(&input, "f16", MmaMode::Exact(MmaArch::Hopper))[0][0];
    assert_eq!(ampere, 1.0);
    assert_eq!(hopper, 1.0 - 2f32.powi(-24));
}
