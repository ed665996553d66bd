//! What is broken in an instruction, operator by operator.

use ptx_sim::mutate::{
    Operator::{self, *},
    mutants,
};

/// What `operator` makes of `body`.
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
        // A register of another declaration is of another kind.
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
        // Nothing comes of the order of these, and a label stays in its place.
        (SwapNeighbours, "add.u32 %r1, %r2, 1; shl.b32 %r3, %r2, 1;", &[]),
        (SwapNeighbours, "ld.shared.u32 %r1, [%r2]; ld.shared.u32 %r3, [%r2];", &[]),
        (SwapNeighbours, "bra L; bar.sync 0; L: ld.shared.u32 %r1, [%r2];", &[]),
    ];
    for (operator, body, expected) in cases {
        assert_eq!(of(body, *operator), *expected, "{operator:?} of {body}");
    }
}
