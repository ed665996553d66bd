//! Tests that convergent instructions stay convergent: without a guard, LLVM breaks the programs in this
//! file.

use cuda_builder::module::Ptx;
use cuda_builder::{Contract, Error, Module};

const KERNELS: [&str; 8] = [
    "branch_f16",
    "branch_bf16",
    "branch_matrix",
    "branch_matrix_trans",
    "search_f16",
    "search_bf16",
    "search_matrix",
    "search_matrix_trans",
];

#[test]
fn nothing_is_cloned_into_the_arms_of_a_lanes_branch() {
    let output = common::std().build().unwrap();
    let own: Vec<_> = output.modules.iter().filter(|m| KERNELS.contains(&m.contract.symbol)).collect();
    assert_eq!(own.len(), KERNELS.len());
    for module in own {
        let (symbol, text) = (module.contract.symbol, &module.text);
        let count = |opcode: &str| text.lines().filter(|line| line.trim_start().starts_with(opcode)).count();
        assert_eq!(count("mma.") + count("ldmatrix."), 1, "{symbol}: {text}");
        assert_eq!(count("activemask"), 0, "{symbol}: the guard is for LLVM alone: {text}");
        check(module);
    }
}

/// Checks in the simulator that exactly the lanes with a value above one half write 16, and that there is no
/// report.
#[track_caller]
fn check(module: &Module) {
    let symbol = module.contract.symbol;
    let inputs: [f32; 32] = std::array::from_fn(|i| if i % 3 == 2 { 1.0 } else { 0.0 });
    let buffers = [inputs.map(f32::to_le_bytes).concat(), vec![0; 32 * 4]];
    let left = common::run(module, [1; 3], [32, 1, 1], &buffers);
    let values = left[1].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    for (lane, value) in values.enumerate() {
        let seen = if symbol.starts_with("branch") { lane < 20 && inputs[lane] > 0.5 } else { lane % 7 > 2 };
        assert_eq!(value, if seen { 16.0 } else { 0.0 }, "{symbol}, lane {lane}");
    }
}

/// Kernels that LLVM breaks, each with the instruction that it clones into both arms of a divergent branch.
#[test]
fn a_plain_asm_of_a_convergent_instruction_is_refused() {
    for (kernel, opcode) in [
        ("plain", "shfl.sync.bfly.b32"),
        ("plain_arrive", "bar.arrive"),
        ("plain_reduce", "bar.red"),
        ("plain_search", "bar.arrive"),
    ] {
        let error = common::std().features(["plain"]).entry(Contract::new(kernel, 32)).build().unwrap_err();
        assert!(
            matches!(&error, Error::Unguarded { symbol, instruction }
                if symbol == kernel && instruction.contains(opcode)),
            "{error}"
        );
    }
}

/// A function with the body `body`, in the form that rustc writes.
fn function(body: &str) -> String {
    format!(".version 7.8\n.visible .entry k()\n{{\n{body}\tret;\n}}\n")
}

const ASM: &str = "\t// begin inline asm\n\tmma.sync.aligned.m16n8k16 {%r1};\n\t// end inline asm\n";
const GUARD: &str = "\tactivemask.b32 \t%r9;\n";

#[test]
fn a_guard_covers_one_piece_of_assembly_of_its_block() {
    let wgmma = "\t// begin inline asm\n\twgmma.fence.sync.aligned;\n\twgmma.mma_async.sync.aligned x;\n";
    let alone = "\t// begin inline asm\n\tcp.async.commit_group;\n\t// end inline asm\n";
    let cases = [
        (format!("{GUARD}{ASM}"), true),
        (format!("{GUARD}\tmov.b32 %r1, 0;\n$L__tmp1:\n{ASM}"), true),
        (format!("{GUARD}{GUARD}{ASM}{ASM}"), true),
        (format!("{GUARD}{wgmma}\t// end inline asm\n"), true),
        (alone.to_owned(), true),
        ("\tbar.sync \t0;\n".to_owned(), true),
        (ASM.to_owned(), false),
        (format!("{GUARD}{ASM}{ASM}"), false),
        (format!("{GUARD}$L__BB0_1:\n{ASM}"), false),
        (format!("{GUARD}\t@%p1 bra \t$L__BB0_1;\n{ASM}"), false),
        (format!("{wgmma}\t// end inline asm\n"), false),
        // This is an intrinsic of LLVM that LLVM does not treat as convergent.
        ("\tldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%r2];\n".to_owned(), false),
    ];
    for (body, fine) in cases {
        let parsed = function(&body);
        match Ptx::parse(&parsed) {
            Ok(_) => assert!(fine, "{body}"),
            Err(Error::Unguarded { symbol, .. }) => assert!(!fine && symbol == "k", "{body}"),
            Err(other) => panic!("{other}"),
        }
    }
}

/// Instructions, each with whether the gate refuses it in assembly without a guard.
const INSTRUCTIONS: [(&str, bool); 25] = [
    ("bar.sync 0;", true),
    ("bar.arrive 1, 64;", true),
    ("bar.cta.arrive 1, 64;", true),
    ("bar.red.popc.u32 %r1, 0, %p1;", true),
    ("{ bar.warp.sync -1; }", true),
    ("barrier.arrive 1, 64;", true),
    ("barrier.arrive.aligned 1, 64;", true),
    ("barrier.red.and.pred %p2, 0, %p1;", true),
    ("barrier.cluster.arrive;", true),
    ("barrier.cluster.arrive.aligned;", true),
    ("barrier.cluster.wait;", true),
    ("setmaxnreg.inc.sync.aligned.u32 240;", true),
    ("vote.ballot.b32 %r1, %p1;", true),
    ("shfl.bfly.b32 %r1, %r2, 1, 31;", true),
    ("elect.sync %r1|%p1, -1;", true),
    ("@%p1 wgmma.fence.sync.aligned;", true),
    ("redux.sync.or.b32 %r1, %r2, %r3;", true),
    ("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r1], {%r1};", true),
    ("call (%r1), whole_warp, (%r2);", true),
    ("{ .reg .pred a; setp.ne.u32 a, %r2, 99; call.uni whole_warp, (%r2); }", true),
    // The following instructions are executed by single threads.
    ("mbarrier.arrive.shared.b64 %rd1, [%r1];", false),
    ("cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];", false),
    ("fence.proxy.async.shared::cta;", false),
    ("{ .reg .pred wanted; setp.ne.u32 wanted, %r1, 0; @wanted st.global.b32 [%rd1], %r2; }", false),
    ("@%p1 red.global.add.u32 [%rd1], 1;", false),
];

#[test]
fn what_threads_execute_together_is_refused_whatever_its_suffixes() {
    for (instruction, refused) in INSTRUCTIONS {
        let assembly = format!("\t// begin inline asm\n\t{instruction}\n\t// end inline asm\n");
        let plain = function(&assembly);
        let found = Ptx::parse(&plain).map(drop);
        assert_eq!(matches!(found, Err(Error::Unguarded { .. })), refused, "{instruction}: {found:?}");
        let guarded = function(&format!("{GUARD}{assembly}"));
        assert!(Ptx::parse(&guarded).is_ok(), "{instruction}");
    }
}

#[test]
fn a_guard_goes_and_a_mask_that_is_read_stays() {
    let used = "\tactivemask.b32 \t%r10;\n\tst.global.b32 [%rd1], %r10;\n";
    let text = function(&format!("{GUARD}{ASM}{used}"));
    let module = Ptx::parse(&text).unwrap().module("k", "").unwrap();
    assert!(!module.contains("%r9;") && module.contains(used), "{module}");
}
