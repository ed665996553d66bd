//! Tests that reports name source lines through inlining.

use ptx_sim::{Gpu, Launch, Module, Options, Profile, Report, SourceLine};

/// The source lines in the report of an invalid store, with `comment` after its `.loc`.
fn report(comment: &str) -> Report {
    let text = format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k() {{
        .reg .b64 %rd<2>;
        .loc 1 29 1
        mov.u64 %rd1, 64;
        .loc 3 7 14{comment}
        st.global.u32 [%rd1], 1;
        .loc 1 0 0
        ret; }}
        .file 1 \"kernel/lib.rs\"\n.file 2 \"tile/tile.rs\"\n.file 3 \"std/ptx.rs\"\n.file 4 \
         \"rust-src/core/src/iter.rs\"
        .section .debug_macinfo {{ .b8 0 .b64 $L__tmp0+4 }}"
    );
    let mut gpu = Gpu::new(Profile::by_name("l4").unwrap(), Options::default());
    let launch = Launch::new([1; 3], [1; 3], &[]);
    gpu.launch(&Module::parse(&text).unwrap(), "k", &launch).unwrap().reports.remove(0)
}

#[track_caller]
fn check(comment: &str, expected: &[&str]) {
    let report = report(comment);
    let lines: Vec<_> = report.second.place.source.iter().map(ToString::to_string).collect();
    assert_eq!(lines, expected, "{comment}");
    let shown = format!("at {}", lines.join("\n      from "));
    assert!(report.to_string().contains(&shown), "{report}");
}

#[test]
fn inlined_calls_are_listed_innermost_first() {
    let chain = ["std/ptx.rs:7", "tile/tile.rs:20", "kernel/lib.rs:30"];
    check(" // @2:20:9@1:30:5", &chain);
    // This comment has LLVM's form.
    check("  // std/ptx.rs:7:14 @[ tile/tile.rs:20:9 @[ kernel/lib.rs:30:5 ] ]", &chain);
}

#[test]
fn the_standard_library_and_repetitions_are_left_out() {
    check(
        " // @4:90:1@2:20:9@2:20:3@4:91:1@1:30:5",
        &["std/ptx.rs:7", "tile/tile.rs:20", "kernel/lib.rs:30"],
    );
}

#[test]
fn without_calls_the_line_stands_alone() {
    for comment in ["", " // a remark", " // by me@home"] {
        check(comment, &["std/ptx.rs:7"]);
    }
}

#[test]
fn the_kernels_own_line_says_most() {
    let lines = report(" // @2:20:9@1:30:5@1:31:5").second.place.source;
    assert_eq!(SourceLine::in_kernel(&lines).map(ToString::to_string).as_deref(), Some("kernel/lib.rs:30"));
    assert_eq!(SourceLine::in_kernel(&[]), None);
}
