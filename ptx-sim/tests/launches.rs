//! What stands in a module about its launches, and what a driver refuses because of it.

use ptx_sim::{Gpu, Launch, Module, Options, Profile};

/// Launches `head { ret; }`, one block of `threads`; what was refused and why, empty where nothing was.
fn outcome(profile: &str, head: &str, threads: u32, registers: Option<u32>) -> String {
    let text = format!(".version 8.0\n.target sm_80\n.address_size 64\n{head} {{ ret; }}");
    let module = match Module::parse(&text) {
        Ok(module) => module,
        Err(error) => return error.to_string(),
    };
    let mut gpu = Gpu::new(Profile::by_name(profile).unwrap(), Options::default());
    let block = [threads, 1, 1];
    let launch = Launch { grid: [1; 3], block, dynamic_smem: 0, smem_opt_in: 0, registers, params: &[] };
    gpu.launch(&module, "k", &launch).map_or_else(|error| error.to_string(), |_| String::new())
}

fn check(cases: &[(&str, u32, Option<u32>, &str)]) {
    for &(directives, threads, registers, wrong) in cases {
        let found = outcome("a100", &format!(".visible .entry k() {directives}"), threads, registers);
        let case = format!(
            "{directives}, {threads} threads, {registers:?} registers: `{found}`, expected `{wrong}`"
        );
        assert!(found.contains(wrong) && found.is_empty() == wrong.is_empty(), "{case}");
    }
}

#[test]
fn the_registers_of_a_block_fit_the_device() {
    check(&[
        ("", 1024, None, ""),
        ("", 1024, Some(64), ""),
        (
            "",
            1024,
            Some(65),
            "65 registers a thread, as the launch says: 1024 threads exceed the 65536 registers of a100; 64 \
             would fit",
        ),
        // Seven warps take the place of eight.
        ("", 224, Some(255), ""),
        ("", 288, Some(168), ""),
        ("", 288, Some(169), "288 threads exceed the 65536 registers of a100; 168 would fit"),
        ("", 32, Some(256), "at most 255"),
        (".maxnreg 255", 256, None, ""),
        (".maxnreg 255", 1024, None, "255 registers a thread, as `.maxnreg` allows: 1024 threads exceed"),
        (".maxnreg 255", 1024, Some(40), ""),
        (".maxnreg 64", 1024, None, ""),
        // Of these two ptxas takes `.maxnreg`, and with `.minnctapersm` the lower limit.
        (".maxnreg 255 .reqntid 1024", 1024, None, "64 would fit"),
        (".maxntid 1024\n.maxnreg 255", 1024, None, "64 would fit"),
        (".maxnreg 255 .reqntid 1024 .minnctapersm 1", 1024, None, ""),
        (".reqntid 1024", 1024, None, ""),
    ]);
}

#[test]
fn the_promised_blocks_fit_a_multiprocessor() {
    check(&[
        (".minnctapersm 2", 1024, None, ""),
        (
            ".minnctapersm 9",
            1024,
            None,
            ".minnctapersm 9, but a multiprocessor of a100 holds 2048 threads, so at most 2 blocks of 1024",
        ),
        (".reqntid 256, 1, 1 .minnctapersm 8", 256, None, ""),
        (".reqntid 256, 1, 1 .minnctapersm 9", 256, None, "at most 8 blocks of 256"),
        (".maxntid 512 .minnctapersm 5", 32, None, "at most 4 blocks of 512"),
    ]);
    let entry = ".visible .entry k() .minnctapersm 4";
    assert_eq!(outcome("a100", entry, 512, None), "");
    assert!(outcome("l4", entry, 512, None).contains("l4 holds 1536 threads, so at most 3 blocks of 512"));
}

#[test]
fn directives_are_honoured_or_refused() {
    check(&[
        (".pragma \"nounroll\";\n.reqntid 32, 1, 1", 32, None, ""),
        (".maxclusterrank 8", 32, None, ""),
        (".bogus 3", 32, None, "4:21: PTX has no directive `.bogus` for an entry"),
        ("\n.reqntid 32\n.noreturn", 32, None, "6:1: PTX has no directive `.noreturn` for an entry"),
        (".explicitcluster", 32, None, "`.explicitcluster` asks for clusters"),
        (".reqnctapercluster 2, 1, 1", 32, None, "`.reqnctapercluster` asks for clusters"),
        (".blocksareclusters", 32, None, "`.blocksareclusters` asks for clusters"),
        (".maxnctapersm 2", 32, None, "`.minnctapersm` took its place"),
        (".reqntid 32 .maxntid 64", 32, None, "exclude each other"),
        (".reqntid 0", 32, None, "`.reqntid` takes 1 to 4294967295, not 0"),
        (".reqntid 4294967328", 32, None, "not 4294967328"),
        (".maxntid 4294967295, 4294967295, 4294967295", 32, None, ""),
        (".minnctapersm 0", 32, None, "`.minnctapersm` takes 1 to"),
        (".maxnreg 0", 32, None, "`.maxnreg` takes 1 to 255, not 0"),
        (".maxnreg 300", 32, None, "`.maxnreg` takes 1 to 255, not 300"),
    ]);
    let with = |function: &str, call: &str| {
        outcome(
            "a100",
            &format!("{function}\n.visible .entry k() {{ {call} ret; }}\n.visible .entry other()"),
            32,
            None,
        )
    };
    assert_eq!(with(".func f() .noreturn .abi_preserve 8 { exit; }", "call.uni f, ();"), "");
    assert_eq!(with(".func f() .noreturn { ret; }", ""), "");
    for body in ["{ ret; }", "{ .reg .b32 r; mov.b32 r, 0; }"] {
        let found = with(&format!(".func f() .noreturn {body}"), "call.uni f, ();");
        assert!(found.contains("line 4") && found.contains("`.noreturn`"), "{body}: {found}");
    }
    assert!(with(".func f() .maxnreg 32 { ret; }", "").contains("no directive `.maxnreg` for a function"));
}
