//! Reports name source lines through inlining.

use ptx_sim::{Gpu, Launch, Module, Options, Profile};

/// DWARF 2 as rustc writes it, by hand: entry `k` (lib.rs), into which `outer` (called at lib.rs:30) is inlined, into which `store` (called
/// at tile.rs:20) is inlined.
fn module() -> Module {
    let text = |text: &str| text.bytes().chain([0]).map(|byte| format!(".b8 {byte}\n")).collect::<String>();
    let bytes = |bytes: &[u8]| bytes.iter().map(|byte| format!(".b8 {byte}\n")).collect::<String>();
    // 1: unit; 2: abstract function with a name; 3: function with a name and a range; 4: inlined call, with children; 5: without.
    let abbreviations = bytes(&[
        1, 17, 1, 3, 8, 0, 0, //
        2, 46, 0, 3, 8, 0, 0, //
        3, 46, 1, 3, 8, 17, 1, 18, 1, 0, 0, //
        4, 29, 1, 49, 19, 17, 1, 18, 1, 88, 11, 89, 11, 87, 11, 0, 0, //
        5, 29, 0, 49, 19, 17, 1, 18, 1, 88, 11, 89, 11, 87, 11, 0, 0, 0,
    ]);
    // Offsets from the start of the unit: the header has 11 bytes, then come code and text of each entry.
    let (outer, store) = (11 + 3, 11 + 3 + 7);
    let unit = [
        bytes(&[1]) + &text("u"),
        bytes(&[2]) + &text("outer"),
        bytes(&[2]) + &text("store<f32>"),
        bytes(&[3]) + &text("k") + ".b64 $L__begin\n.b64 $L__end\n",
        format!("{}.b32 {outer}\n.b64 $L__o0\n.b64 $L__o1\n{}", bytes(&[4]), bytes(&[1, 30, 5])),
        format!("{}.b32 {store}\n.b64 $L__s0\n.b64 $L__s1\n{}", bytes(&[5]), bytes(&[2, 20, 9])),
        bytes(&[0, 0, 0]),
    ]
    .concat();
    let code = ".visible .entry k() {
        .reg .b64 %rd<2>; .reg .b32 %r<2>;
        $L__begin: .loc 1 29 1
        mov.u64 %rd1, 64;
        $L__o0: .loc 2 19 3
        mov.u32 %r1, 1;
        $L__s0: .loc 3 7 14
        st.global.u32 [%rd1], %r1;
        $L__s1: .loc 2 21 3
        mov.u32 %r1, 2;
        $L__o1: .loc 1 31 1
        ret;
        $L__end: }";
    let files = ".file 1 \"lib.rs\"\n.file 2 \"tile.rs\"\n.file 3 \"ptx.rs\"";
    let length = 7 + 3 + 7 + 12 + (3 + 16) + 2 * (1 + 4 + 16 + 3) + 3;
    let text = format!(
        ".version 7.8\n.target sm_80, debug\n.address_size 64\n{code}\n{files}\n.section .debug_abbrev {{\n{abbreviations}}}\n\
        .section .debug_info {{\n.b32 {length}\n.b8 2\n.b8 0\n.b32 .debug_abbrev\n.b8 8\n{unit}}}\n"
    );
    Module::parse(&text).unwrap()
}

#[test]
fn inlined_calls_are_listed_innermost_first() {
    let mut gpu = Gpu::new(Profile::by_name("l4").unwrap(), Options::default());
    let launch = Launch { grid: [1; 3], block: [1; 3], dynamic_smem: 0, smem_opt_in: 0, params: &[] };
    let outcome = gpu.launch(&module(), "k", &launch).unwrap();
    let lines: Vec<_> = outcome.reports[0].second.place.source.iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["ptx.rs:7 (store)", "tile.rs:20 (outer)", "lib.rs:30 (k)"]);
}

#[test]
fn without_debug_sections_the_nearest_other_file_stands_for_the_caller() {
    let text =
        ".version 7.8\n.target sm_80\n.address_size 64\n.file 1 \"lib.rs\"\n.file 3 \"ptx.rs\"\n.visible .entry k() {
        .reg .b64 %rd<2>;
        .loc 1 29 1
        mov.u64 %rd1, 64;
        .loc 3 7 14
        st.global.u32 [%rd1], 1;
        .loc 1 0 0
        ret; }";
    let mut gpu = Gpu::new(Profile::by_name("l4").unwrap(), Options::default());
    let launch = Launch { grid: [1; 3], block: [1; 3], dynamic_smem: 0, smem_opt_in: 0, params: &[] };
    let outcome = gpu.launch(&Module::parse(text).unwrap(), "k", &launch).unwrap();
    let lines: Vec<_> = outcome.reports[0].second.place.source.iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["ptx.rs:7", "lib.rs:29"]);
}
