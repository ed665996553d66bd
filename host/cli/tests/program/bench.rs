//! Tests `bench` from its shapes to its report, on a driver that runs nothing. The measured times mean
//! nothing.
use crate::common::{Folder, ferroflash, text};
use crate::fake_cuda::folder;
use serde_json::Value;

/// A shape of each kind with head dim `D`, and whether it is measured cold by default.
const SHAPES: &[(&str, bool)] = &[
    (r#""batch": 1, "heads_q": 8, "heads_k": 8, "seqlen_q": 64, "seqlen_k": 64, "head_dim": 64"#, false),
    (r#""sequences": [[2, 40, 90]], "heads_q": 4, "heads_k": 2, "head_dim": D, "causal": true"#, false),
    (r#""sequences": [[3, 1, 99]], "heads_q": 4, "heads_k": 2, "head_dim": D, "page": 0"#, true),
    (r#""sequences": [[1, 1, 9], [1, 1, 700]], "heads_q": 4, "heads_k": 2, "head_dim": D, "page": 16"#, true),
    (r#""sequences": [[1, 30, 40]], "heads_q": 4, "heads_k": 2, "head_dim": 64, "page": 16"#, true),
    (r#""append": 20, "heads_k": 2, "head_dim": 64"#, true),
    (r#""merge": 20, "heads_q": 2, "head_dim": 64"#, true),
];

fn bench(args: &[&str]) -> Value {
    let mut command = ferroflash(&[&["bench", "--json"], args].concat());
    let output = command.env("LD_LIBRARY_PATH", folder()).output().expect("starts");
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

#[test]
fn every_kind_of_shape_is_measured() {
    let folder = Folder::new("bench");
    // The sample of the kernels has the planner's choices at head dim 64.
    let head_dim = if reference::carries_all() { "128" } else { "64" };
    let shapes: Vec<_> =
        SHAPES.iter().map(|(shape, _)| format!("{{{}}}", shape.replace('D', head_dim))).collect();
    let file = folder.write("shapes.json", &format!("{{\"mine\": [{}]}}", shapes.join(", ")));
    let report = bench(&["--file", &file, "--rounds", "1", "--svg", &folder.path("plot.svg")]);
    assert_eq!([&report["failed"], &report["left_out"]], [&Value::Array(vec![]); 2], "{report}");
    let rows = report["rows"].as_array().expect("rows");
    let timings: Vec<_> = rows.iter().map(|row| row["timing"] == "cold").collect();
    assert_eq!(timings, SHAPES.iter().map(|(_, cold)| *cold).collect::<Vec<_>>());
    for row in rows {
        let positive = |key: &str| row[key].as_f64().is_some_and(|x| x > 0.0);
        assert!(positive("p50_us") && positive("gb_per_s"), "{row}");
        let copies = row["shape"].as_str().is_some_and(|shape| shape.contains(" tokens"));
        assert!(positive("tflops") != copies, "{row}");
    }
    assert!(report["launch_overhead_us"]["p50"].as_f64().is_some_and(|x| x > 0.0), "{report}");
    let before = folder.write("before.json", &report.to_string());
    let both = bench(&["--file", &file, "--rounds", "1", "--timing", "both", "--against", &before]);
    assert_eq!(both["rows"].as_array().map(Vec::len), Some(2 * SHAPES.len()));
    assert_eq!(both["against"]["compared"], SHAPES.len());
    let plot = std::fs::read_to_string(folder.path("plot.svg")).expect("written");
    assert!(plot.contains("append of 20 tokens") && plot.contains("GB/s"), "{plot}");
}
