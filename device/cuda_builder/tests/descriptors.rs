//! Tests of the check that finds `wgmma` descriptors of which ptxas has lost the upper half.

use cuda_builder::sass::Sass;

/// A product of S of `hopper_mla_f16_d576_causal_64x64` with the instructions that make its descriptors, from
/// ptxas 13.0.88. LLVM had added the upper half and the distances of k-steps in one constant.
const LOST: &str = include_str!("fixtures/lost_descriptors.sass");

/// The product whose descriptors LLVM does not know.
const KEPT: &str = include_str!("fixtures/descriptors.sass");

#[test]
fn halves_that_ptxas_has_lost() {
    assert_eq!(KEPT.matches("HGMMA").count(), 16);
    assert_eq!(Sass::parse(KEPT).lost_descriptors, 0);
    // The first k-step is right.
    assert_eq!(Sass::parse(LOST).lost_descriptors, 15);
}

/// The number of lost products in a kernel that has these `lines`.
fn of(lines: &[&str]) -> u32 {
    let line = |(at, line): (usize, &&str)| match line.strip_suffix(':') {
        Some(_) => format!("{line}\n"),
        None => format!("        /*{at:04x}*/                   {line}   /* 0x000fe200000018ff */\n"),
    };
    Sass::parse(&lines.iter().enumerate().map(line).collect::<String>()).lost_descriptors
}

const A: &str = "UMOV UR21, 0x40000040 ;";
const B: &str = "UMOV UR23, 0x80000020 ;";
const BOTH: &str = "HGMMA.64x96x16.F32 R24, gdesc[UR20], R24 ;";
const RIGHT: &str = "HGMMA.64x192x16.F32 R24, R168, gdesc[UR20].tnspB, R24 ;";

#[test]
fn halves_that_nobody_writes() {
    assert_eq!(of(&[A, B, BOTH, RIGHT]), 0);
    assert_eq!(of(&[A, BOTH, RIGHT]), 2);
    assert_eq!(of(&[B, BOTH, RIGHT]), 1);
    assert_eq!(of(&[A, BOTH, B, BOTH, "EXIT ;"]), 1);
}

#[test]
fn halves_that_instructions_move() {
    for (instruction, lost) in [
        ("UIADD3.64 UR22, UR20, 0x2, URZ ;", 0),
        ("UIADD3.64 UR22, UR20, -0x2, URZ ;", 0),
        ("UIADD3.64 UR22, UR4, 0x2, URZ ;", 1),
        ("UIADD3 UR23, UR21, 0x40000040, URZ ;", 1),
        ("UIADD3.X UR23, UR21, URZ, URZ, UP0, !UPT ;", 0),
        ("UIADD3.X UR23, URZ, 0x40000040, URZ, UP0, !UPT ;", 0),
        ("UIMAD.WIDE.U32 UR22, UR7, 0x400, UR20 ;", 0),
        ("UIMAD.WIDE.U32 UR22, UR7, 0x400, URZ ;", 1),
        ("ULOP3.LUT UR23, URZ, 0x40000040, URZ, 0xfc, !UPT ;", 0),
        ("ULOP3.LUT UR23, UR21, 0x40000000, URZ, 0xc0, !UPT ;", 1),
        ("USEL UR23, UR21, 0x40000040, UP0 ;", 0),
        ("USEL UR23, UR21, URZ, UP0 ;", 1),
        ("USHF.R.U64 UR22, UR8, UR24, UR7 ;", 0),
        ("USHF.R.U64 UR23, UR8, UR24, UR7 ;", 1),
        ("@P0 UMOV UR23, UR21 ;", 1),
        ("R2UR UR23, R2 ;", 0),
        ("R2UR UR23, R3 ;", 1),
        ("R2UR UR23, R24 ;", 1),
    ] {
        let moved = ["IMAD.MOV.U32 R2, RZ, RZ, 0x40000040 ;", "MOV R24, R2 ;", A, B, BOTH, instruction];
        assert_eq!(of(&[&moved[..], &[BOTH]].concat()), lost, "{instruction}");
    }
}

#[test]
fn halves_that_are_spilled() {
    let spill = |to, from| {
        of(&["CS2R R2, SRZ ;", "MOV R3, 0x40000040 ;", to, from, "R2UR UR23, R5 ;", A, BOTH, "EXIT ;"])
    };
    assert_eq!(spill("STL.64 [R1+0x8], R2 ;", "LDL.64 R4, [R1+0x8] ;"), 0);
    assert_eq!(spill("STL [R1+0xc], R3 ;", "LDL.LU R5, [R1+0xc] ;"), 0);
    assert_eq!(spill("STL [R1+0x8], R3 ;", "LDL R5, [R1+0xc] ;"), 1);
    assert_eq!(spill("STL [R1+0xc], R2 ;", "LDL R5, [R1+0xc] ;"), 1);
}

#[test]
fn a_half_that_is_written_on_one_way() {
    let ways = |skip| [A, skip, B, ".L_x_1:", BOTH, "EXIT ;"];
    assert_eq!(of(&ways("@P0 BRA `(.L_x_1) ;")), 1);
    assert_eq!(of(&ways("BRA UP0, `(.L_x_1) ;")), 1);
    assert_eq!(of(&ways("NOP ;")), 0);
    // No thread reaches an instruction behind `EXIT`.
    assert_eq!(of(&[A, "EXIT ;", BOTH]), 0);
    assert_eq!(of(&[A, "@P0 EXIT ;", BOTH]), 1);
}

#[test]
fn rounds_of_a_loop() {
    let rounds = |last| of(&[A, B, ".L_x_1:", BOTH, last, "@P0 BRA `(.L_x_1) ;", "EXIT ;"]);
    assert_eq!(rounds("UMOV UR23, UR21 ;"), 1, "another layout");
    assert_eq!(rounds("UIADD3.64 UR22, UR22, 0x80, URZ ;"), 0);
    assert_eq!(of(&[A, ".L_x_1:", BOTH, B, "@P0 BRA `(.L_x_1) ;", "EXIT ;"]), 1, "the first");
}

#[test]
fn calls() {
    let call = |last| {
        of(&[
            A,
            B,
            "CALL.REL.NOINC `($panic) ;",
            ".L_x_1:",
            BOTH,
            "EXIT ;",
            "$panic:",
            "UMOV UR23, URZ ;",
            last,
        ])
    };
    assert_eq!(call("RET.REL.NODEC R4 `(kernel) ;"), 1);
    // Nothing is behind the call of a function that does not return.
    assert_eq!(call("BPT.TRAP 0x1 ;"), 0);
}
