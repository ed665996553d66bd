//! Tests programs for every common communication pattern, in a right and in wrong forms, against PTX's memory
//! model.

use ptx_sim::{Gpu, Kind, Module, Options, Profile, script::Script};

/// The PTX that clang made of `memory_model/kernels.cu`.
const KERNELS: &str = include_str!("memory_model/kernels.ptx");

/// The expected result of a launch.
enum Verdict {
    /// The final values of the last buffer, by element. There is no report.
    Leaves(fn(i64) -> i64),
    /// There is no report. The final values depend on the order of threads.
    Clean,
    /// There is at least one report, and all reports have these kinds.
    Reports(&'static [Kind]),
}
use Verdict::{Clean, Leaves, Reports};

/// The columns: kernel, buffers, grid, block, arguments behind the buffers, verdict.
type Case = (&'static str, &'static str, u32, u32, &'static str, Verdict);

const SHARED: Verdict = Reports(&[Kind::ReadAfterWrite, Kind::WriteAfterRead, Kind::WriteAfterWrite]);
const GLOBAL: Verdict = Reports(&[Kind::GlobalRace]);
const LANES: Verdict = Reports(&[Kind::WarpRace]);

/// The result is in the last buffer. Buffers are s32, each with a length; `name=0` contains zeros, `name` is
/// never written.
const CASES: [Case; 41] = [
    ("arms", "o 64", 1, 64, "", Leaves(|i| 63 - i)),
    ("bytesok", "o 64", 1, 64, "", Leaves(|i| 63 - i)),
    ("dbuf", "x=iota 640; o 128", 1, 128, "s32:5", Leaves(|i| 5 * (127 - i) + 1280)),
    (
        "dbuf_racy",
        "x=iota 640; o 128",
        1,
        128,
        "s32:5",
        Reports(&[Kind::WriteAfterRead, Kind::ReadAfterWrite, Kind::PendingCopy]),
    ),
    ("early", "o 128", 1, 128, "s32:64", Reports(&[Kind::MissingParticipants])),
    ("flag_ok", "d 64; f=zero 1; o 4", 4, 32, "", Clean),
    ("flag_back", "d 64; f=zero 1; o 4", 2, 32, "", Clean),
    ("flag_acqrel", "d 64; f=zero 1; o 32", 2, 32, "", Leaves(|i| 31 - i)),
    ("flag_nofence", "d=zero 64; f=zero 1; o 4", 2, 32, "", GLOBAL),
    ("flag_earlyfence", "d=zero 64; f=zero 1; o 4", 2, 32, "", GLOBAL),
    ("flag_nosync", "d=zero 64; f=zero 1; o 64", 2, 64, "", GLOBAL),
    ("flag_noreadsync", "d=zero 64; f=zero 1; o 64", 2, 64, "", GLOBAL),
    ("flag_cta", "d=zero 64; f=zero 1; o 4", 2, 32, "", GLOBAL),
    ("flag_ctarel", "d=zero 64; f=zero 1; o 4", 2, 32, "", GLOBAL),
    ("gridbar", "cnt=zero 1; d 512; o 128", 4, 32, "s32:4", Leaves(|i| (i + 32) % 128)),
    ("lastb", "cnt=zero 1; d 512; o 32", 4, 32, "s32:4", Leaves(|_| 6)),
    ("lastb_nosync", "cnt=zero 1; d=zero 512; o 512", 4, 64, "s32:4", GLOBAL),
    ("lock_ok", "l=zero 1; c=zero 1", 8, 32, "", Leaves(|_| 8)),
    ("lock_norel", "l=zero 1; c=zero 1", 8, 32, "", GLOBAL),
    ("lock_noacq", "l=zero 1; c=zero 1", 8, 32, "", GLOBAL),
    ("lock_lanes", "l=zero 1; c=zero 1", 2, 32, "", Leaves(|_| 64)),
    ("lock_shared", "o 1", 1, 128, "", Leaves(|_| 4)),
    ("lookback", "st=zero 8; v 8; o 8", 8, 32, "", Leaves(|i| (i + 1) * (i + 2) / 2)),
    ("named", "o 32", 1, 64, "", Leaves(|i| 1500 + 6 * (31 - i))),
    ("named_racy", "o 32", 1, 64, "", SHARED),
    ("odd", "o 48", 1, 48, "", Leaves(|i| 47 - i)),
    ("same_lane", "o 1", 1, 32, "", Leaves(|_| 7)),
    ("same_lane2", "o 1", 1, 32, "", Leaves(|_| 5)),
    ("same_lane3", "o 32", 1, 32, "", Leaves(|i| 5 + i)),
    ("same_value", "o 128", 1, 128, "", Leaves(|_| 1)),
    ("same_value_global", "o 1", 4, 32, "", Leaves(|_| 1)),
    ("same_value_warp", "o 32", 1, 32, "", Leaves(|_| 1)),
    ("sflag", "o 1", 1, 64, "", Leaves(|_| 77)),
    ("shfl_partial", "o 32", 1, 32, "", Leaves(|i| if i % 2 == 1 { i ^ 2 } else { i ^ 4 })),
    ("unaligned", "o 64", 1, 64, "", Leaves(|i| 63 - i)),
    ("war_many", "x=iota 1; o=zero 4; cnt=zero 1", 4, 32, "", GLOBAL),
    ("war_many_atomic", "x=iota 1; o=zero 4; cnt=zero 1", 4, 32, "", GLOBAL),
    ("warp_ok", "o 1", 1, 32, "", Leaves(|_| 496)),
    ("warp_partial", "o 32", 1, 32, "", Leaves(|i| if i < 16 { 15 - i } else { 2 * (47 - i) })),
    ("warp_racy", "o 1", 1, 32, "", LANES),
    ("warp_waw", "o 32", 1, 32, "", LANES),
];

fn check(module: &Module, (kernel, buffers, grid, block, more, verdict): &Case, seed: u64) {
    let mut script = String::new();
    let (mut args, mut last) = (String::new(), ("", 0));
    for buffer in buffers.split("; ") {
        let (name, length) = buffer.split_once(' ').unwrap();
        let (name, values) = name.split_once('=').unwrap_or((name, ""));
        script += &format!("buffer {name} s32 {length}");
        script += &if values.is_empty() { String::from("\n") } else { format!(" = {values}\n") };
        args += &format!(" {name}");
        last = (name, length.parse().unwrap());
    }
    script += &format!("run {kernel} grid {grid} block {block} args{args} {more}\n");
    match verdict {
        Leaves(value) => {
            let values: Vec<_> = (0..last.1).map(|i| value(i).to_string()).collect();
            script += &format!("expect {} = {}\n", last.0, values.join(" "));
        }
        Clean => {}
        Reports(kinds) => {
            let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
            script += &format!("report {}\n", names.join(" "));
        }
    }
    let options = Options { seed, patience: 1_000_000, ..Options::default() };
    let mut gpu = Gpu::new(Profile::by_name("l4").unwrap(), options);
    let runs = Script::parse(&script)
        .and_then(|script| script.run(&mut gpu, module))
        .unwrap_or_else(|error| panic!("{kernel}, seed {seed}: {error}\n{script}"));
    let reports: Vec<_> = runs[0].outcome.reports.iter().map(ToString::to_string).collect();
    assert!(runs[0].as_expected(), "{kernel}, seed {seed}: {reports:#?}\n{script}");
}

#[test]
fn every_pattern_has_its_verdict() {
    let module = Module::parse(KERNELS).unwrap();
    for case in &CASES {
        (0..4).for_each(|seed| check(&module, case, seed));
    }
}
