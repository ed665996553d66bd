//! Commands that list, verify, fuzz and compare kernels.
use crate::common::{DEMO, Folder, check, check_error, configuration, ferroflash, of_family, report, text};
use ferroflash::kernels::{Class, Isa, MaskKind, plain};
use ferroflash::ptx::is_embedded;
use ferroflash::spec::KERNELS;
use serde_json::Value;

#[test]
fn verify_reports_every_case() {
    let mut entries = ferroflash::kernels::entries();
    let entry = entries.find(|entry| is_embedded(entry.contract.symbol)).expect("one is carried");
    let verify = ["verify", "--quick", "--device", "sim", "--config", entry.contract.symbol];
    let report = report(&[&verify[..], &["--soak", "2", "--seed", "7"]].concat());
    assert_eq!(
        (&report["passed"], &report["seed"], &report["grid"]),
        (&true.into(), &7.into(), &"quick".into())
    );
    let rows = report["kernels"].as_array().expect("a list");
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["cases"], reference::edges(entry, 7).len());
    let ratio = rows[0]["worst_ratio"].as_f64().expect("a number");
    assert!(ratio > 0.0 && ratio <= 1.0, "{report}");
}

/// Verifies one kernel of each other family by name.
#[test]
fn every_family_is_verified() {
    for family in ["packed", "decode", "paged", "mixed few", "append", "merge"] {
        let name = of_family(family);
        let report = report(&["verify", "--quick", "--device", "sim", "--profile", "h200", "--config", name]);
        let rows = report["kernels"].as_array().expect("a list");
        assert_eq!(rows.len(), 1);
        assert_eq!((&rows[0]["family"], &rows[0]["name"]), (&family.into(), &name.into()));
        assert!(rows[0]["cases"].as_u64().is_some_and(|cases| cases > 0), "{report}");
    }
    // One captured launch is replayed with other lengths.
    for (family, graphs) in [("packed", 1), ("decode", 1), ("paged", 1), ("mixed few", 2), ("merge", 0)] {
        let name = of_family(family);
        let verify = ["verify", "--quick", "--device", "sim", "--graphs", "2", "--config", name];
        assert_eq!(report(&verify)["kernels"][0]["graphs"], graphs, "{name}");
    }
    let merge = of_family("merge");
    let soaked = report(&["soak", "--device", "sim", "--config", merge, "--launches", "3"]);
    assert_eq!((&soaked["passed"], &soaked["kernels"][0]["differing"]), (&true.into(), &0.into()));
}

/// Returns two entries that differ only in the mask.
fn full_and_causal() -> [&'static ferroflash::kernels::AttnInfo; 2] {
    let carried = || plain(Isa::Sm80, Class::Dense).filter(|e| is_embedded(e.contract.symbol));
    let of = |kind| carried().filter(move |e| e.mask == kind);
    let shape = |e: &ferroflash::kernels::AttnInfo| {
        (e.dtype, e.head_dim, e.tile_m, e.tile_n, e.contract.threads, e.contract.smem_bytes)
    };
    let pairs = of(MaskKind::Full).flat_map(|a| of(MaskKind::Causal).map(move |b| [a, b]));
    pairs.into_iter().find(|[a, b]| shape(a) == shape(b)).expect("the table has such a pair")
}

#[test]
fn wrong_and_broken_kernels() {
    let [full, causal] = full_and_causal();
    let folder = Folder::new("kernels");
    let with = |ptx: &str, args: &[&str]| {
        folder.write(&format!("{}.ptx", causal.contract.symbol), ptx);
        ferroflash(args).arg("--ptx-dir").arg(&folder.0).output().expect("starts")
    };
    let verify = ["verify", "--quick", "--device", "sim", "--config", causal.contract.symbol];
    // The text is the full kernel under the causal kernel's name. No checker can find this bug, because only
    // results are wrong.
    let swapped = ferroflash::ptx::source(full.contract.symbol)
        .expect("carried")
        .replace(full.contract.symbol, causal.contract.symbol);
    let output = with(&swapped, &verify);
    check_error(&output, 1, "off by ");
    assert!(text(&output.stdout).contains("  WRONG f16 batch 1"), "the report lists what is wrong");
    let output = with(&swapped, &[&verify[..], &["--json"]].concat());
    let report: Value =
        serde_json::from_slice(&output.stdout).expect("one JSON document, with the error in the report");
    assert_eq!((&report["passed"], &report["exit_code"]), (&false.into(), &1.into()));
    assert!(report["error"].as_str().is_some_and(|error| error.contains("off by ")), "{report}");
    // Child processes that share the kernels also replace this kernel.
    for jobs in ["1", "2"] {
        let shared = [&verify[..], &["--config", "merge_f16", "--jobs", jobs]].concat();
        check_error(&with(&swapped, &shared), 1, "off by ");
        check_error(&with(".version 7.8\nnonsense", &shared), 2, "PTX: ");
    }
}

/// Only the option `--ptx-dir` replaces kernels. No environment variable replaces kernels. The program names
/// the kernels that it replaces.
#[test]
fn kernels_are_replaced_by_an_option_alone() {
    let demo = ["run", "--input", DEMO, "--check", "--device", "sim"];
    let genuine = report(&demo);
    let kernel = genuine["kernel"].as_str().expect("a name");
    assert_eq!(genuine.get("replaced_kernels"), None);
    let (folder, empty) = (Folder::new("replaced"), Folder::new("replaces-nothing"));
    let file = folder.write(&format!("{kernel}.ptx"), ".version 7.8\nnonsense");
    for value in [folder.0.as_path(), "".as_ref()] {
        let mut command = ferroflash(&demo);
        let output =
            command.env("FERROFLASH_PTX_DIR", value).current_dir(&folder.0).output().expect("starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let folder = folder.0.to_str().expect("UTF-8");
    let replaced =
        |json: &[&str]| ferroflash(&[&demo, json, &["--ptx-dir", folder]].concat()).output().expect("starts");
    let output = replaced(&[]);
    check_error(&output, 2, &format!("PTX: {file}; the simulator cannot read it: "));
    let note = format!("--ptx-dir replaces kernels (1) by files of {folder}: {kernel}\n");
    assert!(text(&output.stderr).contains(&note), "{}", text(&output.stderr));
    std::fs::write(&file, ferroflash::ptx::source(kernel).expect("carried")).expect("written");
    let output = replaced(&[]);
    assert!(text(&output.stdout).contains(&format!("with {kernel} from {file}")), "{}", text(&output.stdout));
    let document: Value = serde_json::from_slice(&replaced(&["--json"]).stdout).expect("one JSON document");
    assert_eq!(document["replaced_kernels"], serde_json::json!([kernel]));
    // The note has a few names, however many kernels the folder has.
    let names = ferroflash::kernels::entries().map(|entry| entry.contract.symbol).take(9);
    let many = Folder::new("replaces-many");
    names.for_each(|name| drop(many.write(&format!("{name}.ptx"), "")));
    let folder = many.0.to_str().expect("UTF-8");
    let output = ferroflash(&["kernels", "--ptx-dir", folder]).output().expect("starts");
    assert!(text(&output.stderr).contains(" and 4 more\n"), "{}", text(&output.stderr));
    let nothing = [&demo[..], &["--ptx-dir", empty.0.to_str().expect("UTF-8")]].concat();
    check(&nothing, 2, "it must have a file <symbol>.ptx of at least one kernel");
}

/// The report names the kernels that a device cannot run, line by line and in the verdict.
#[test]
fn verdicts_count_what_was_skipped() {
    let kernels = ["append_copy", "append_f16_e4m3_native"].map(|name| ["--config", name]).concat();
    let on = |command: &[&'static str]| {
        let output =
            ferroflash(&[command, &kernels, &["--profile", "a100"]].concat()).output().expect("starts");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().last().unwrap_or_default().to_owned()
    };
    for command in [&["verify", "--quick"][..], &["sanitize", "--seeds", "1"], &["soak", "--launches", "2"]] {
        let verdict = on(command);
        assert!(verdict.ends_with("; 1 kernel skipped: its line says why"), "{command:?}: {verdict}");
    }
}

/// If no kernel ran, the error names a card that would run them.
#[test]
fn verdicts_name_a_card_for_kernels_that_none_ran() {
    let config = ["--config", of_family("hopper"), "--device", "sim"];
    for command in [&["verify", "--quick"][..], &["sanitize"], &["soak", "--launches", "2"]] {
        let output = ferroflash(&[command, &config].concat()).output().expect("starts");
        check_error(&output, 2, "--profile h200");
        let verdict = text(&output.stdout).lines().last().unwrap_or_default().to_owned();
        assert!(verdict.starts_with("nothing ran: 0 "), "{command:?}: {verdict}");
    }
}

#[test]
fn kernels_are_the_table() {
    let report = report(&["kernels"]);
    let rows = report["kernels"].as_array().expect("a list");
    assert_eq!(rows.len(), KERNELS.len());
    let info = crate::common::report(&["info", "--device", "cpu"]);
    let embedded = KERNELS.iter().filter(|kernel| is_embedded(kernel.symbol)).count();
    assert_eq!([&info["embedded_kernels"], &info["kernels"]], [embedded, KERNELS.len()]);
    for kernel in KERNELS {
        let row = rows.iter().find(|row| row["name"] == kernel.symbol).expect("every kernel is listed");
        assert_eq!(row["threads"], kernel.threads);
        assert_eq!(row["shared_memory_bytes"], kernel.smem_bytes);
        assert_eq!(row["target"], kernel.target.to_string());
    }
    for (row, subject) in rows.iter().zip(reference::subjects()) {
        assert_eq!(row["name"], subject.contract().symbol);
        assert_eq!(row["family"], subject.family());
        assert_eq!(row["mask"].as_str(), subject.mask().map(MaskKind::name));
    }
    for (row, entry) in rows.iter().zip(ferroflash::kernels::entries()) {
        assert_eq!((&row["dtype"], &row["head_dim"]), (&entry.dtype.name().into(), &entry.head_dim.into()));
    }
}

#[test]
fn kernels_by_what_they_are() {
    for (options, symbol, holds) in [
        (&["--mask", "causal", "--head-dim", "80"][..], "fwd_f16_d96_causal_", true),
        (&["--mask", "causal", "--head-dim", "80"], "fwd_f16_d128_", false),
        (&["--head-dim", "80"], "decode_f16_d96_", true),
        (&["--head-dim", "80"], "decode_f16_e4m3_d128_", true),
        (&["--head-dim", "80"], "decode_combine_bf16_d96", true),
        (&["--head-dim", "80"], "merge_f32_bf16", false),
        (&["--family", "decode"], "fwd_", false),
        (&["--family", "append"], "append_copy", true),
        (&["--family", "paged", "--dtype", "bf16"], "_f16_", false),
        (&["--family", "mixed", "--head-dim", "128"], "mixed_many_f16_d128_causal_128x48", true),
        (&["--family", "mixed"], "mixed_combine_f16_d64", true),
        (&["--family", "decode"], "mixed_", false),
        (&["--family", "hopper", "--head-dim", "128"], "hopper_paged_", true),
        (&["--family", "paged", "--head-dim", "64"], "hopper_paged_", true),
        (&["--family", "packed", "--head-dim", "96"], "hopper_packed_f16_d96_full_", true),
        (&["--head-dim", "96"], "\nhopper_packed_f16_d128_", false),
        (&["--config", "merge_f16"], "merge_f16", true),
        (&["--config", "merge_f16"], "merge_f32", false),
    ] {
        let output = ferroflash(&[&["kernels"], options].concat()).output().expect("starts");
        let all = text(&output.stdout);
        assert_eq!(all.contains(symbol), holds, "{options:?}: {all}");
        let lines: Vec<_> = all.lines().collect();
        let count = lines[1..].iter().filter(|line| line.contains("KiB")).count();
        assert_eq!(lines.last(), Some(&&*format!("{count} kernels")), "a head line, the kernels, a sum");
    }
    check(&["kernels", "--family", "append", "--mask", "local"], 2, "no kernel matches these options");
    check(&["kernels", "--config", "nothing"], 2, "`ferroflash kernels` lists them");
}

#[test]
fn fuzz_counts_what_it_judged() {
    // Selects the first case whose kernels the program carries.
    let of = |case: usize| -> Value {
        let args = ["fuzz", "--device", "sim", "--json", "--case", &case.to_string()];
        let output = ferroflash(&args).output().expect("starts");
        serde_json::from_slice(&output.stdout).expect("one JSON document")
    };
    let report = (3..99).map(of).find(|report| report["left_out"] == 0).expect("one of them is solved");
    assert_eq!((&report["passed"], &report["solved"]), (&true.into(), &1.into()));
    let others = report["others"].as_object().expect("families");
    assert_eq!((others.len(), others.values().filter_map(Value::as_u64).sum::<u64>()), (9, 1), "{report}");
    assert!(report["small"].as_u64().is_some_and(|small| small <= 1), "{report}");
    assert!(report["small_rule"].as_str().is_some_and(|rule| rule.contains("16384")), "{report}");
    let count = |key: &str| report[key].as_u64().unwrap_or_else(|| panic!("{key}: {report}"));
    assert!(count("wide") <= 1 && count("rows_not_judged") <= count("wide_rows"), "{report}");
    assert!(
        report["wide_rule"].as_str().is_some_and(|rule| rule.contains("2^28 in f16 or 2^31")),
        "{report}"
    );
}

#[test]
fn cross_check_compares_kernels_and_products() {
    for family in ["decode", "paged", "mixed few", "append", "merge"] {
        let entry = of_family(family);
        let report =
            report(&["agree", "--device", "sim", "--profile", "h200", "--products", "60", "--config", entry]);
        assert_eq!((&report["agree"], report.get("error")), (&Value::Null, None), "no GPU: {report}");
        assert_eq!(report["device"], "NVIDIA H200 (simulated)");
        let row = &report["kernels"][0];
        assert_eq!((&row["name"], &row["skipped"]), (&entry.into(), &serde_json::Value::Null));
        assert_eq!(row["differing"], 0, "the simulator computes equal bits twice");
        let sum = &report["families"][0];
        assert_eq!(
            (&sum["name"], &sum["kernels"], &sum["cases"]),
            (&family.into(), &1.into(), &row["cases"])
        );
        assert!(row["words"].as_u64().is_some_and(|words| words > 0));
        assert_eq!(report["products"].as_array().map(Vec::len), Some(2), "f16 and bf16");
    }
    let merge = of_family("merge");
    let ran = ferroflash(&["agree", "--device", "sim", "--products", "1", "--config", merge]).output();
    let said = ran.expect("starts").stdout;
    let verdict = text(&said).lines().last().unwrap_or_default();
    assert!(
        verdict.starts_with("NO GPU WAS COMPARED: ") && verdict.contains("use --device gpu"),
        "{verdict}"
    );
    check(&["agree", "--device", "cpu"], 2, "use --device gpu");
}

#[test]
fn the_command_line_takes_the_names() {
    let kernels = report(&["kernels", "--config", "flashcore/64x32-persistent"]);
    let rows = kernels["kernels"].as_array().expect("a list");
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!((&row["path"], &row["grid"]), (&"tensor cores".into(), &"persistent".into()));
        assert_eq!(row["lineage"], serde_json::json!(["flashcore/64x32-persistent"]));
    }
    let name = configuration();
    let verified = report(&["verify", "--all-configs", "--quick", "--device", "sim", "--config", name]);
    assert_eq!(verified["kernels"].as_array().map(Vec::len), Some(2));
    let headline = verified["headline"].as_array().expect("a list");
    assert_eq!(headline.iter().map(|row| &row["name"]).collect::<Vec<_>>(), [name; 2]);
    assert!(
        headline.iter().all(|row| row["max_error"].as_f64().is_some_and(|error| error > 0.0 && error < 2e-3))
    );
    for (args, words) in [
        (["run", "--input", "none", "--config", "fa_s512/80x64w8"], "none"),
        (["verify", "--device", "sim", "--config", "fa_s512/80x64w8"], "5 row tiles of 16"),
        (["soak", "--device", "sim", "--config", "fa_s512/80x64w4"], "5 row tiles of 16"),
        (["soak", "--device", "sim", "--config", "v3/9"], "`ferroflash kernels` lists them"),
    ] {
        let output = ferroflash(&args).arg("--json").output().expect("starts");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(words), "{args:?}: {message}");
    }
}

/// The name of a kernel that runs beside others names these. No kernel of the table is refused.
#[test]
fn every_kernel_has_a_name_for_verify() {
    let beside = ["bwd_delta_f16_d32", "bwd_dq_f16_d64_full_bias_f32_128x64", "bwd_convert_dq_f16_d128"];
    let names =
        [&beside[..], &["bwd_dsinks", "combine_f16_d64", "mixed_many_f16_d128_causal_128x48"]].concat();
    for name in names {
        assert!(KERNELS.iter().any(|kernel| kernel.symbol == name), "{name}");
        // No card has the number 99, so no kernel runs.
        let words = ["verify", "--device", "gpu:99", "--config", name];
        check(&words, 3, "");
    }
}

#[test]
fn a_soak_from_threads_and_streams_agrees_in_every_bit() {
    let soak = ["soak", "--device", "sim", "--config", configuration(), "--launches", "4"];
    let report = report(&[&soak[..], &["--threads", "2", "--streams", "2"]].concat());
    assert_eq!(report["passed"], true);
    for row in report["kernels"].as_array().expect("a list") {
        assert_eq!(
            (&row["rounds"], &row["launches"], &row["differing"]),
            (&16.into(), &64.into(), &0.into())
        );
        assert_eq!(row["device_growth_bytes"], 0, "every buffer is freed");
    }
}
