//! Tests of launch directives in a module, and of launches that a driver refuses because of them.

use ptx_sim::{Gpu, Launch, Module, Options, Profile};

/// Launches `head { ret; }` with one block of `threads`. Returns the text of the refusal or of the report, or
/// an empty text if there is none.
fn outcome(profile: &str, head: &str, threads: u32, registers: Option<u32>) -> String {
    let text = format!(".version 8.0\n.target sm_80\n.address_size 64\n{head} {{ ret; }}");
    let module = match Module::parse(&text) {
        Ok(module) => module,
        Err(error) => return error.to_string(),
    };
    let mut gpu = Gpu::new(Profile::by_name(profile).unwrap(), Options::default());
    let block = [threads, 1, 1];
    let launch = Launch { registers, ..Launch::new([1; 3], block, &[]) };
    let reports = |outcome: ptx_sim::Outcome| outcome.reports.iter().map(|it| it.to_string()).collect();
    gpu.launch(&module, "k", &launch).map_or_else(|error| error.to_string(), reports)
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
            "65 registers per thread (as the launch says): 1024 threads exceed the 65536 registers of a100; \
             64 per thread would fit",
        ),
        // Seven warps take the same number of registers as eight warps.
        ("", 224, Some(255), ""),
        ("", 288, Some(168), ""),
        ("", 288, Some(169), "288 threads exceed the 65536 registers of a100; 168 per thread would fit"),
        ("", 32, Some(256), "at most 255"),
        (".maxnreg 255", 256, None, ""),
        (".maxnreg 255", 1024, None, "255 registers per thread (as `.maxnreg` allows): 1024 threads exceed"),
        (".maxnreg 255", 1024, Some(40), ""),
        (".maxnreg 64", 1024, None, ""),
        // If both directives set a limit, ptxas takes `.maxnreg`; with `.minnctapersm`, it takes the lower
        // limit.
        (".maxnreg 255 .reqntid 1024", 1024, None, "64 per thread would fit"),
        (".maxntid 1024\n.maxnreg 255", 1024, None, "64 per thread would fit"),
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
        (
            ".pragma \"nounroll\", \"unknown 3\";",
            32,
            None,
            "line 4: `.pragma \"unknown 3\"`: the simulator knows",
        ),
        (".pragma nounroll;", 32, None, "4:29: expected a quoted pragma, found `nounroll`"),
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

/// Tests that the parser skips no text: each directive accepts its arguments in PTX, and no further word.
#[test]
fn no_directive_takes_a_word_that_it_does_not_have() {
    let module = |before: &str, inside: &str| {
        format!(
            ".version 8.0\n.target sm_80, debug\n.address_size 64\n{before}\n.visible .entry k()\n{{ \
             .reg .b64 f;\n{inside}\nret; }}"
        )
    };
    let launched = |text: &str| match Module::parse(text) {
        Err(error) => Err(error.to_string()),
        Ok(module) => module.unsupported("k").first().map_or(Ok(()), |found| {
            Err(format!("ptx line {}: {}: {}", found.line, found.instruction, found.reason))
        }),
    };
    let prototype = "p: .callprototype (.param .b32 _) _ (.param .b64 _) .noreturn;";
    for (before, inside) in [
        (".file 1 \"k.rs\", 12, 13", ""),
        (".pragma \"nounroll\";", ""),
        (".section .debug_str { L0: .b8 1, 2 .b64 L0, L0+4, .debug_str+1, L0-L1 }", ""),
        (".global .samplerref s = { addr_mode_0 = clamp_to_border, filter_mode = nearest };", ""),
        (".global .align 8 .v2 .f32 x[2] = { 0f00000000, 0f00000000 };", ""),
        (".visible .const .align 4 .b8 c[4] = { 1, 2, 3, 4 };", ""),
        ("", ".loc 1 2 3"),
        ("", ".loc 1 2 3, function_name L, inlined_at 1 4 5"),
        ("", ".pragma \"nounroll\";"),
        ("", ".shared .align 4 .b8 tile[16];"),
        ("", prototype),
    ] {
        let text = module(before, inside);
        assert_eq!(launched(&text), Ok(()), "{text}");
        let statement = if before.is_empty() { inside } else { before };
        // This loop inserts a word, and then a directive, between every two tokens of the statement.
        let tokens: Vec<&str> = statement.split_inclusive([' ', ',', ';', '{', '}', '=', '(', ')']).collect();
        for at in 1..tokens.len() {
            // The loop inserts both forms, because `rubbish` can pass for the name of a variable or function,
            // and `.rubbish` cannot.
            for planted in [" rubbish ", " .rubbish "] {
                let changed = [&tokens[..at], &[planted], &tokens[at..]].concat().concat();
                let text = if before.is_empty() { module("", &changed) } else { module(&changed, "") };
                assert!(launched(&text).is_err(), "{changed}");
            }
        }
    }
    for (text, wrong) in [
        (module("", "").replace("debug", "rubbish"), "2:16: expected `texmode_unified`"),
        (module("", "").replace("debug", "map_f64_to_f32"), "ptx line 2: map_f64_to_f32: arithmetic of f64"),
        (module(".pragma \"rubbish\";", ""), "ptx line 4: .pragma \"rubbish\": the simulator knows"),
        (module("", ".pragma \"rubbish\";"), "ptx line 7: .pragma \"rubbish\": the simulator knows"),
        (module(".section .rubbish { .b8 1 }", ""), "4:10: expected a section of DWARF"),
        (module("", ".loc 1 2 3, inlined_by 1 4 5"), "7:13: expected `function_name` or `inlined_at`"),
    ] {
        let error = launched(&text).unwrap_err();
        assert!(error.contains(wrong), "{error}, expected {wrong}");
    }
}
