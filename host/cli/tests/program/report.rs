//! Tests `report`: a dry run in the simulator, and refusals.
use crate::common::{Folder, check, check_error, ferroflash, text};
use serde_json::Value;
use std::fs;

#[test]
fn a_dry_run_leaves_a_page_and_a_json() {
    let folder = Folder::new("report");
    let args = ["report", "--device", "sim", "--json", "--output", &folder.path("card")];
    let output = ferroflash(&args).output().expect("starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    let kept = fs::read(folder.0.join("card/report.json")).expect("written");
    assert_eq!(serde_json::from_slice::<Value>(&kept).expect("JSON"), said);
    assert_eq!((&said["passed"], &said["dry_run"]), (&true.into(), &true.into()), "{said}");
    let kernels = said["verify"]["kernels"].as_array().expect("a list");
    let families: Vec<_> = kernels.iter().map(|row| row["family"].as_str().expect("a name")).collect();
    for family in ["forward", "packed", "split", "decode", "paged", "mixed few", "append", "merge"] {
        assert!(families.contains(&family), "{family}: {families:?}");
    }
    assert!(kernels.iter().all(|row| row["cases"].as_u64() > Some(0)), "{said}");
    assert!(said["bench"].is_null() && said["missing"].to_string().contains("a simulator has no times"));
    let page = fs::read_to_string(folder.0.join("card/report.html")).expect("written");
    for words in ["NVIDIA L4 (simulated)", "a dry run", "<td>merge</td>", "multiprocessors"] {
        assert!(page.contains(words), "{words}");
    }
    for outside in ["src=", "<link", "@import", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn without_a_card_it_refuses_in_words() {
    check(&["report", "--device", "cpu"], 2, "--device sim is a dry run");
    // The environment variable `CUDA_VISIBLE_DEVICES` hides the GPUs of this machine.
    let output = ferroflash(&["report"]).env("CUDA_VISIBLE_DEVICES", "-1").output().expect("starts");
    check_error(&output, 3, "`report` measures a GPU; --device sim is a dry run without a GPU");
}
