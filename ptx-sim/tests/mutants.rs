//! Tests the mutants of an instruction, operator by operator.

use ptx_sim::mutate::{
    Operator::{self, *},
    mutants,
};

/// The mutants of `body` that `operator` makes.
fn of(body: &str, operator: Operator) -> Vec<String> {
    let text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n.visible .entry k()\n{{\n.reg .pred %p<4>;\n.reg \
         .b32 %r<9>;\n.reg .b64 %rd<9>;\n{body}\nret;\n}}"
    );
    let all = mutants(&text, "k").unwrap_or_else(|error| panic!("{body}: {error}"));
    let own = all.into_iter().filter(|mutant| mutant.operator == operator);
    own.map(|mutant| mutant.apply(&text).lines().nth(8).unwrap_or_default().to_owned()).collect()
}

#[test]
fn each_operator_changes_what_it_says() {
    let cases: &[(Operator, &str, &[&str])] = &[
        (ShiftImmediate, "add.u32 %r1, %r2, 7;", &["add.u32 %r1, %r2, 8;"]),
        (ShiftImmediate, "ld.shared.v2.b32 {%r1, %r2}, [%r3];", &["ld.shared.v2.b32 {%r1, %r2}, [%r3+8];"]),
        (
            ShiftImmediate,
            "cp.async.cg.shared.global [%r1], [%rd1+32], 16;",
            &[
                "cp.async.cg.shared.global [%r1+16], [%rd1+32], 16;",
                "cp.async.cg.shared.global [%r1], [%rd1+48], 16;",
            ],
        ),
        (Bound, "setp.lt.u32 %p1, %r1, 7;", &["setp.lt.u32 %p1, %r1, 8;"]),
        (
            Lanes,
            "shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1;",
            &[
                "shfl.sync.bfly.b32 %r1, %r2, 2, 31, -1;",
                "shfl.sync.bfly.b32 %r1, %r2, 1, 15, -1;",
                "shfl.sync.bfly.b32 %r1, %r2, 1, 31, 2147483647;",
            ],
        ),
        (
            Lanes,
            "vote.sync.any.pred %p1, %p2, -1;",
            &["vote.sync.all.pred %p1, %p2, -1;", "vote.sync.any.pred %p1, %p2, 2147483647;"],
        ),
        (Lanes, "mov.u32 %r1, %tid.x;", &["mov.u32 %r1, %laneid;"]),
        (Operand, "mov.u32 %r1, 2; add.u32 %r2, %r3, 5;", &["mov.u32 %r1, 2; add.u32 %r2, %r1, 5;"]),
        // A register from another declaration counts as another kind.
        (Operand, "mov.u64 %rd1, 2; add.u32 %r2, %r3, 5;", &[]),
        (
            ChangePredicate,
            "setp.eq.u32 %p1, %r1, %r2; @%p2 add.u32 %r1, %r2, %r3;",
            &["setp.eq.u32 %p1, %r1, %r2; @%p1 add.u32 %r1, %r2, %r3;"],
        ),
        (ChangePredicate, "selp.b32 %r1, %r2, %r3, %p1;", &["selp.b32 %r1, %r3, %r2, %p1;"]),
        (SwapNeighbours, "bar.sync 0; ld.shared.u32 %r1, [%r2];", &["ld.shared.u32 %r1, [%r2]; bar.sync 0;"]),
        (
            SwapNeighbours,
            "add.u32 %r1, %r2, 1; shl.b32 %r3, %r1, 1;",
            &["shl.b32 %r3, %r1, 1; add.u32 %r1, %r2, 1;"],
        ),
        // The order of these instructions does not matter, and a label stays in its place.
        (SwapNeighbours, "add.u32 %r1, %r2, 1; shl.b32 %r3, %r2, 1;", &[]),
        (SwapNeighbours, "ld.shared.u32 %r1, [%r2]; ld.shared.u32 %r3, [%r2];", &[]),
        (SwapNeighbours, "bra L; bar.sync 0; L: ld.shared.u32 %r1, [%r2];", &[]),
    ];
    for (operator, body, expected) in cases {
        assert_eq!(of(body, *operator), *expected, "{operator:?} of {body}");
    }
}

#[test]
fn products_and_bulk_copies_are_broken() {
    let product = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r1, %r2, %r3, %r4}";
    let in_registers = format!("{product}, {{%r5, %r6, %r7, %r8}}");
    let expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1]";
    let store = "@%p1 cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd1";
    let with = |ty: &str, change: &str, value: &str, by: u64, text: &str| {
        format!("{{ .reg .{ty} mutant; {change} mutant, {value}, {by}; {text} }}")
    };
    let moved = |change, by| with("b64", change, "%rd1", by, &format!("{in_registers}, mutant, 1, 1, 1, 0;"));
    let counted = |change, by| with("b32", change, "%r2", by, &format!("{expect}, mutant;"));
    let cases: [(Operator, String, Vec<String>); 8] = [
        (DeleteFence, "wgmma.fence.sync.aligned;".into(), vec![String::new()]),
        (
            Descriptor,
            format!("{in_registers}, %rd1, 1, 1, 1, 0;"),
            vec![
                moved("add.u64", 2),
                moved("add.u64", 64),
                moved("xor.b64", 3 << 62),
                moved("add.u64", 1 << 32),
            ],
        ),
        (
            Accumulate,
            format!("{product}, %rd1, %rd2, 0, 1, 1, 0, 1;"),
            vec![format!("{product}, %rd1, %rd2, 1, 1, 1, 0, 1;")],
        ),
        (
            Lanes,
            format!("{product}, %rd1, %rd2, 0, 1, 1, 0, 1;"),
            vec![
                format!("{product}, %rd1, %rd2, 0, 1, 1, 1, 1;"),
                format!("{product}, %rd1, %rd2, 0, 1, 1, 0, 0;"),
            ],
        ),
        (
            TransactionCount,
            format!("{expect}, %r2;"),
            vec![counted("add.u32", 16), counted("sub.u32", 16), counted("shr.u32", 1)],
        ),
        (
            Registers,
            "setmaxnreg.inc.sync.aligned.u32 232;".into(),
            vec!["setmaxnreg.inc.sync.aligned.u32 240;".into()],
        ),
        (
            Registers,
            "setmaxnreg.dec.sync.aligned.u32 24;".into(),
            vec!["setmaxnreg.dec.sync.aligned.u32 32;".into(), String::new()],
        ),
        (
            ShiftImmediate,
            format!("{store}, {{%r1}}], [%r2];"),
            vec![
                with("b32", "add.u32", "%r1", 1, &format!("{store}, {{ mutant}}], [%r2];")),
                format!("{store}, {{%r1}}], [%r2+16];"),
            ],
        ),
    ];
    for (operator, body, expected) in cases {
        assert_eq!(of(&body, operator), expected, "{operator:?} of {body}");
    }
}
