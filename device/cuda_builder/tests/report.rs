//! Tests of the parsers for the output of ptxas and nvdisasm, and of the rules about the parsed figures.

use cuda_builder::gate::{Rule, breaches};
use cuda_builder::ptxas::Resources;
use cuda_builder::report::EntryReport;
use cuda_builder::sass::{Sass, section};
use cuda_builder::{Contract, SpillAllowance};

const PTXAS: &str = "\
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ... \
                     in function 'fwd'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'fwd' for 'sm_90a'
ptxas info    : Function properties for fwd
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 16 bytes cumulative stack size, 1040 bytes smem, 464 \
                     bytes cmem[0]
ptxas info    : Compile time = 268.089 ms
ptxas info    : Function properties for panic
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
";

#[test]
fn resources_are_those_of_the_entry() {
    let expected = Resources {
        registers: 168,
        stack: 16,
        spill_stores: 12,
        spill_loads: 20,
        static_smem: 1040,
        serialised: vec![PTXAS.lines().next().unwrap().to_owned()],
    };
    assert_eq!(Resources::parse("fwd", PTXAS), Some(expected));
    assert_eq!(Resources::parse("bwd", PTXAS), None);
    // The text of two entries.
    let other = PTXAS.replace("fwd", "bwd").replace("168", "128");
    let both = other.clone() + PTXAS;
    assert_eq!(Resources::parse("fwd", &both), Resources::parse("fwd", PTXAS));
    assert_eq!(Resources::parse("bwd", &both), Resources::parse("bwd", &other));
    let nameless = both.replace(" in function 'bwd'", "");
    assert_eq!(Resources::parse("fwd", &nameless).map(|found| found.serialised.len()), Some(2));
}

/// A disassembly with an outer loop that spills, around an inner loop with tensor-core instructions; then a
/// second, longer loop with the same number of such instructions; then the trap after the end.
const SASS: &str = "\
\t.section\t.text.fwd,\"ax\",@progbits
fwd:
.text.fwd:
        /*0000*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;
        /*0010*/                   STL [R1], R4 ;
.L_x_1:
        /*0020*/                   LDL R4, [R1] ;
.L_x_2:
        /*0030*/                   LDSM.16.M88.4 R104, [R4+0x5000] ;
        /*0040*/                   HMMA.16816.F32 R28, R12, R8.reuse, RZ ;
                                                                          /* 0x000fe200000018ff */
        /*0050*/              @!P0 BRA `(.L_x_2) ;
        /*0060*/               @P0 BRA P1, `(.L_x_1) ;
.L_x_3:
        /*0070*/                   HMMA.16816.F32 R28, R12, R8.reuse, RZ ;
        /*0080*/                   IADD3 R4, R4, 0x1, RZ ;
        /*0090*/                   MUFU.EX2 R4, R4 ;
        /*00a0*/              @!P0 BRA `(.L_x_4) ;
        /*00b0*/                   BRA `(.L_x_3) ;
.L_x_4:
        /*00c0*/                   EXIT ;
.L_x_5:
        /*00d0*/                   BRA `(.L_x_5);
        /*00e0*/                   NOP;
";

#[test]
fn a_section_is_that_of_the_entry() {
    let two = SASS.replace("fwd", "fwd_2").replace("HMMA", "QMMA") + SASS;
    assert_eq!(section("fwd", &two), section("fwd", SASS));
    let other = section("fwd_2", &two).expect("a section");
    assert!(other.contains("QMMA") && !other.contains("HMMA"));
    assert_eq!(section("bwd", &two), None);
}

#[test]
fn the_main_loop_is_the_shortest_with_the_most_tensor_work() {
    let sass = Sass::parse(SASS);
    let expected = [("BRA", 1), ("HMMA", 1), ("LDSM", 1)];
    assert_eq!(sass.main_loop, expected.map(|(o, n)| (o.to_owned(), n)).into());
    assert_eq!((sass.loop_length(), sass.kernel_length()), (3, 15));
    assert_eq!((sass.kernel_count("HMMA"), sass.kernel_count("MOV"), sass.kernel_count("NOP")), (2, 1, 1));
    // The store stands before the loops, and the load stands in the outer loop.
    assert_eq!((sass.local_stores_in_loops, sass.local_loads_in_loops), (0, 1));
}

#[test]
fn a_kernel_without_loops_has_no_main_loop() {
    let sass = Sass::parse(
        "        /*0000*/   HMMA.16816.F32 R28, R12, R8, RZ ;\n.L_x_0:\n  /*0010*/ BRA `(.L_x_0);\n",
    );
    assert_eq!((sass.loop_length(), sass.kernel_length()), (0, 2));
}

fn clean() -> EntryReport {
    EntryReport {
        entry: "fwd".to_owned(),
        target: "sm_80".to_owned(),
        registers: 255,
        stack: 0,
        spill_stores: 0,
        spill_loads: 0,
        static_smem: 0,
        local_depot: false,
        serialised: Vec::new(),
        sass: Sass { kernel: [("EXIT".to_owned(), 1)].into(), ..Sass::default() },
    }
}

#[test]
fn rules() {
    let allowance = SpillAllowance { stores: 12, loads: 16, reason: "2% faster than one block per SM" };
    let plain = Contract::new("fwd", 128);
    let allowed = plain.spills(allowance);
    let spilled = |stores, loads| EntryReport { spill_stores: stores, spill_loads: loads, ..clean() };
    let in_loop = |stores, loads| {
        let sass = Sass { local_stores_in_loops: stores, local_loads_in_loops: loads, ..clean().sass };
        EntryReport { sass, ..clean() }
    };
    let read = |text| EntryReport { sass: Sass::parse(text), ..clean() };
    let cases = [
        (&plain, clean(), vec![]),
        (&plain, read(SASS), vec![Rule::SpillInLoop { stores: 0, loads: 1 }]),
        (&plain, read("no disassembly"), vec![Rule::Unread { instructions: 0 }]),
        (&plain, read("/*0000*/ NOP ;"), vec![Rule::Unread { instructions: 1 }]),
        (&plain, EntryReport { local_depot: true, ..clean() }, vec![Rule::LocalDepot]),
        (
            &plain,
            EntryReport { serialised: vec!["(C7510)".to_owned()], ..clean() },
            vec![Rule::Serialised("(C7510)".to_owned())],
        ),
        (&plain, spilled(4, 0), vec![Rule::Spill { stores: 4, loads: 0, allowed: None }]),
        (&allowed, spilled(12, 16), vec![]),
        (&allowed, spilled(16, 16), vec![Rule::Spill { stores: 16, loads: 16, allowed: Some((12, 16)) }]),
        (&allowed, spilled(12, 20), vec![Rule::Spill { stores: 12, loads: 20, allowed: Some((12, 16)) }]),
        (&allowed, in_loop(0, 1), vec![Rule::SpillInLoop { stores: 0, loads: 1 }]),
        (&allowed, in_loop(1, 0), vec![Rule::SpillInLoop { stores: 1, loads: 0 }]),
    ];
    for (contract, report, expected) in cases {
        let found = breaches(contract, &report);
        assert!(found.iter().all(|b| (b.entry.as_str(), b.target.as_str()) == ("fwd", "sm_80")), "{found:?}");
        assert_eq!(found.into_iter().map(|b| b.rule).collect::<Vec<_>>(), expected, "{report:?}");
    }
}
