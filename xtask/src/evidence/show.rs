//! Shows each file of evidence as tables.

use serde_json::Value;

use super::elements::{Table, bars, escape, number, text};

fn rows<'v>(data: &'v Value, key: &str) -> &'v [Value] {
    data[key].as_array().map_or(&[], Vec::as_slice)
}

/// The text that stands for `passed` or `clean`.
fn verdict(passed: &Value) -> &'static str {
    match passed.as_bool() {
        Some(true) => "<b class=\"good\">passed</b>",
        Some(false) => "<b class=\"bad\">FAILED</b>",
        None => "no verdict",
    }
}

fn sum(rows: &[Value], key: &str) -> u64 {
    rows.iter().filter_map(|row| row[key].as_u64()).sum()
}

/// A table of the headline workload in every configuration, then a table of every kernel.
pub fn verify(data: &Value) -> String {
    let (headline, kernels) = (rows(data, "headline"), rows(data, "kernels"));
    let mut table = Table::new(&["configuration", "mask", "cases", "largest error"]);
    for row in headline {
        let error = row["max_error"].as_f64().map_or("not finite".into(), |error| format!("{error:.1e}"));
        table.row([text(&row["name"]), text(&row["mask"]), text(&row["cases"]), error]);
    }
    let mut all = Table::new(&["kernel", "cases", "worst error / allowed", "skipped"]);
    for row in kernels {
        all.row([
            text(&row["name"]),
            text(&row["cases"]),
            number(&row["worst_ratio"], 3),
            text(&row["skipped"]),
        ]);
    }
    let cases = sum(headline, "cases") + sum(kernels, "cases");
    let title = format!("{} kernels on their test problems", kernels.len());
    format!("<p>{}: {cases} cases</p>{}{}", verdict(&data["passed"]), table.html(), all.folded(&title))
}

/// Bar charts of throughput, one per shape.
pub fn compare(data: &Value) -> String {
    let rows = rows(data, "rows");
    let mut labels: Vec<(String, Vec<&Value>)> = vec![];
    for row in rows {
        let label = format!("{} {} ({})", text(&row["label"]), text(&row["suite"]), text(&row["timing"]));
        match labels.iter_mut().find(|(known, _)| *known == label) {
            Some((_, own)) => own.push(row),
            None => labels.push((label, vec![row])),
        }
    }
    let peer = |row: &&Value| {
        let name = text(&row["peer"]);
        (name, row["tflops"].as_f64().unwrap_or(0.0), format!("{} us", number(&row["us"], 1)))
    };
    let charts =
        labels.iter().map(|(label, own)| bars(label, "TFLOP/s", &own.iter().map(peer).collect::<Vec<_>>()));
    format!("<div class=\"charts\">{}</div>", charts.collect::<String>())
}

/// A table that compares two commits of FerroFlash: the other commit's time divided by this commit's time.
pub fn base(data: &Value) -> String {
    let mut table = Table::new(&["shape", "timing", "us", "before", "times as fast"]);
    let all = rows(data, "rows");
    let key = |row: &Value| ["label", "timing", "suite"].map(|key| text(&row[key]));
    for row in all.iter().filter(|row| row["peer"] == "base") {
        let own = all.iter().find(|own| own["peer"] == "ferroflash" && key(own) == key(row));
        let [shape, timing, _] = key(row);
        let us = own.map_or_else(String::new, |own| number(&own["us"], 1));
        table.row([shape, timing, us, number(&row["us"], 1), number(&row["ratio"], 3)]);
    }
    table.html()
}

/// The text that a program printed.
pub fn program(data: &Value) -> String {
    let said = rows(data, "said").iter().map(|line| escape(&text(line)));
    let said = said.collect::<Vec<_>>().join("\n");
    format!("<p>{}: {}</p><pre>{said}</pre>", verdict(&data["passed"]), text(&data["program"]))
}

/// A table with one row per case.
pub fn shim(data: &Value) -> String {
    let mut table = Table::new(&["case", "error", "allowed", "SDPA's error", "verdict"]);
    for row in rows(data, "cases") {
        let small = |key: &str| row[key].as_f64().map_or_else(String::new, |x| format!("{x:.1e}"));
        let verdict = if row["passed"] == true { "passed" } else { "WRONG" };
        let [error, allowed, sdpa] = ["error", "tolerance", "sdpa_error"].map(small);
        table.row([text(&row["name"]), error, allowed, sdpa, verdict.into()]);
    }
    format!("<p>{}</p>{}", verdict(&data["passed"]), table.html())
}

/// The workloads of `lineage.json`, as `[batch, mask]`.
const WORKLOADS: [(u64, &str); 4] = [(1, "full"), (1, "causal"), (2, "full"), (2, "causal")];

/// A table with one row per configuration and one column per workload.
pub fn lineage(data: &Value) -> String {
    let rows = rows(data, "rows");
    // A configuration has one entry per mask.
    let name = |row: &Value| {
        WORKLOADS.iter().fold(text(&row["kernel"]), |name, (_, mask)| name.replace(&format!("_{mask}_"), "_"))
    };
    let mut names: Vec<String> = vec![];
    for row in rows {
        if !names.contains(&name(row)) {
            names.push(name(row));
        }
    }
    let of = |named: &str, (batch, mask): (u64, &str)| {
        rows.iter().find(|row| name(row) == named && row["batch"] == batch && row["mask"] == mask)
    };
    let time =
        |named: &String| of(named, WORKLOADS[0]).and_then(|row| row["us"].as_f64()).unwrap_or(f64::MAX);
    names.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let mut table = Table::new(&[
        "kernel",
        "configuration",
        "1 batch, full",
        "1, causal",
        "2, full",
        "2, causal",
        "largest error",
    ]);
    for named in &names {
        let cell = |workload| {
            of(named, workload).map_or_else(String::new, |row| {
                format!("{} us, {}x", number(&row["us"], 2), number(&row["times_fa2"], 2))
            })
        };
        let [a, b, c, d] = WORKLOADS.map(cell);
        let own = || WORKLOADS.iter().filter_map(|workload| of(named, *workload));
        let error = own().filter_map(|row| row["error"].as_f64()).fold(0.0, f64::max);
        let configuration = own().next().map_or_else(String::new, |row| text(&row["configuration"]));
        table.row([named.clone(), configuration, a, b, c, d, format!("{error:.1e}")]);
    }
    table.html()
}

/// A table of products, then a table of kernels.
pub fn agree(data: &Value) -> String {
    let mut products = Table::new(&["products", "elements", "differing"]);
    for row in rows(data, "products") {
        products.row(["dtype", "elements", "differing"].map(|key| text(&row[key])));
    }
    let columns = ["kernel", "words", "differing", "O, ulps", "LSE / allowed"];
    let mut kernels = Table::new(&columns);
    for row in rows(data, "kernels") {
        let [name, words, differing] = ["name", "words", "differing"].map(|key| text(&row[key]));
        kernels.row([name, words, differing, number(&row["o_ulps"], 1), number(&row["lse_ratio"], 3)]);
    }
    let title = format!("{} kernels", rows(data, "kernels").len());
    format!("<p>{}</p>{}{}", verdict(&data["agree"]), products.html(), kernels.folded(&title))
}

/// A table with one row per shape. If the card is an L4, the table also has the prediction of the model.
pub fn bench(data: &Value) -> String {
    let columns =
        ["shape", "timing", "p50 us", "p90 us", "TFLOP/s", "GB/s", "SM MHz", "predicted us", "kernel"];
    let mut table = Table::new(&columns);
    for row in rows(data, "rows") {
        let us = |key: &str| number(&row[key], 1);
        let [shape, timing, entry] = ["shape", "timing", "entry"].map(|key| text(&row[key]));
        let [least, most] = [0, 1].map(|at| number(&row["predicted_us"][at], 1));
        table.row([
            shape,
            timing,
            us("p50_us"),
            us("p90_us"),
            us("tflops"),
            number(&row["gb_per_s"], 0),
            number(&row["sm_mhz"], 0),
            if most.is_empty() { most } else { format!("{least} to {most}") },
            entry,
        ]);
    }
    table.html()
}

/// A `ferroflash report` of a card: driver and clocks, the sample of kernels, and every suite.
pub fn report(data: &Value) -> String {
    let mut about = Table::new(&["", ""]);
    let limits = &data["limits"];
    for (name, value) in [
        ("display driver", &data["driver"]),
        ("compute capability", &limits["compute_capability"]),
        ("multiprocessors", &limits["sms"]),
        ("before", &data["clocks"][0]),
        ("after", &data["clocks"][1]),
        ("first call, ms", &data["first_call"]["total_ms"]),
        ("measured over predicted, geomean", &data["model"]["geomean"]),
    ] {
        about.row([name.into(), text(value)]);
    }
    let missing: Vec<_> = rows(data, "missing").iter().map(text).collect();
    let missing = match missing.is_empty() {
        true => String::new(),
        false => format!("<p>Missing: {}</p>", escape(&missing.join("; "))),
    };
    let (verify, bench) = (verify(&data["verify"]), bench(&data["bench"]));
    format!("{}{verify}{bench}{missing}", about.html())
}

/// A table with one row per problem.
pub fn sweep(data: &Value) -> String {
    let mut table = Table::new(&["problem", "fastest", "us", "the table's", "us", "timed"]);
    for row in rows(data, "shapes") {
        let [problem, best, own] = ["problem", "best", "table"].map(|key| text(&row[key]));
        let [us, own_us] = ["microseconds", "table_microseconds"].map(|key| number(&row[key], 1));
        table.row([problem, best, us, own, own_us, rows(row, "candidates").len().to_string()]);
    }
    table.html()
}

/// The findings, then a table of every kernel. In a GPU's report, each row is a tool that checks all kernels.
pub fn sanitize(data: &Value) -> String {
    // Only the simulator has schedules.
    let is_gpu = data["schedules"].is_null();
    let all = rows(data, "kernels");
    let findings: usize = all.iter().map(|row| rows(row, "findings").len()).sum();
    let mut table = match is_gpu {
        true => Table::new(&["tool", "kernels", "launches", "findings", "kernels skipped"]),
        false => Table::new(&["kernel", "launches", "findings", "skipped"]),
    };
    for row in all {
        let found =
            rows(row, "findings").iter().map(|f| format!("{}: {}", text(&f["kind"]), text(&f["message"])));
        let found = found.collect::<Vec<_>>().join("; ");
        let found = if found.is_empty() { "none".into() } else { found };
        let [name, launches, skipped] = ["name", "launches", "skipped"].map(|key| text(&row[key]));
        match is_gpu {
            true => {
                let ran =
                    rows(row, "kernels").iter().filter(|kernel| kernel["cases"].as_u64() > Some(0)).count();
                let skipped =
                    rows(row, "kernels").iter().filter(|kernel| kernel["skipped"].is_string()).count();
                table.row([name, ran.to_string(), launches, found, skipped.to_string()]);
            }
            false => table.row([name, launches, found, skipped]),
        }
    }
    let what = if is_gpu { "tools" } else { "kernels" };
    let (launches, title) = (sum(all, "launches"), format!("{} {what}", all.len()));
    format!(
        "<p>{}: {launches} launches, {findings} findings</p>{}",
        verdict(&data["clean"]),
        table.folded(&title)
    )
}

/// A table of every kernel.
pub fn soak(data: &Value) -> String {
    let kernels = rows(data, "kernels");
    let kib = |value: &Value| value.as_i64().map_or("unknown".into(), |bytes| format!("{:+}", bytes / 1024));
    let mut table = Table::new(&["kernel", "launches", "differing", "device KiB", "process KiB"]);
    for row in kernels {
        let [name, launches, differing] = ["name", "launches", "differing"].map(|key| text(&row[key]));
        table.row([
            name,
            launches,
            differing,
            kib(&row["device_growth_bytes"]),
            kib(&row["process_growth_bytes"]),
        ]);
    }
    let [launches, differing] = ["launches", "differing"].map(|key| sum(kernels, key));
    let title = format!("{} kernels", kernels.len());
    format!(
        "<p>{}: {launches} launches, {differing} differ</p>{}",
        verdict(&data["passed"]),
        table.folded(&title)
    )
}

/// The solved problems, then the refused requests.
pub fn fuzz(data: &Value) -> String {
    let mut table = Table::new(&["fault", "refused by name"]);
    for (fault, count) in data["refused"].as_object().into_iter().flatten() {
        table.row([fault.clone(), text(count)]);
    }
    let [solved, seconds] = [&data["solved"], &data["seconds"]].map(|value| number(value, 0));
    let failure = data["failure"]
        .as_str()
        .or(data["error"].as_str())
        .map(|f| format!("<p class=\"bad\">{}</p>", escape(f)));
    let found = format!("{solved} random problems solved in {seconds} s");
    let wide = data["wide_rows"].as_u64().map_or_else(String::new, |rows| {
        let not_judged = number(&data["rows_not_judged"], 0);
        format!("; of problems of any magnitude, {not_judged} of {rows} rows are not judged")
    });
    format!(
        "<p>{}: {found}{wide}</p>{}{}",
        verdict(&data["passed"]),
        failure.unwrap_or_default(),
        table.folded("Refusals")
    )
}

/// A table of every kernel on every target.
pub fn ptx_stats(data: &Value) -> String {
    let all = data.as_array().map_or(&[][..], Vec::as_slice);
    let columns =
        ["kernel", "target", "registers", "spills, bytes", "in loops", "shared KiB", "blocks per SM", "HMMA"];
    let mut table = Table::new(&columns);
    let count = |row: &Value, keys: [&str; 2]| keys.iter().filter_map(|key| row[*key].as_u64()).sum::<u64>();
    for row in all {
        let [entry, target, registers, blocks, hmma] =
            ["entry", "target", "registers", "blocks_per_sm", "hmma"].map(|key| text(&row[key]));
        let spills = count(row, ["spill_store_bytes", "spill_load_bytes"]).to_string();
        let in_loops = count(row, ["local_loads_in_loops", "local_stores_in_loops"]).to_string();
        let shared = count(row, ["static_smem_bytes", "dynamic_smem_bytes"]) as f64 / 1024.0;
        table.row([entry, target, registers, spills, in_loops, format!("{shared:.1}"), blocks, hmma]);
    }
    let spilling = all.iter().filter(|row| count(row, ["spill_store_bytes", "spill_load_bytes"]) > 0).count();
    let in_loops =
        all.iter().filter(|row| count(row, ["local_loads_in_loops", "local_stores_in_loops"]) > 0).count();
    let multiplies = |entry: &str| entry.starts_with("fwd_") && !entry.ends_with("_scalar");
    let scalar = |row: &&Value| row["entry"].as_str().is_some_and(|entry| !multiplies(entry));
    let wrong = all.iter().filter(|row| (row["hmma"].as_u64() == Some(0)) != scalar(row)).count();
    let paths = match wrong {
        0 => "tensor-core instructions in every tensor-core kernel and in no other".to_owned(),
        wrong => {
            format!(
                "<b class=\"bad\">{wrong} with tensor-core instructions where there should be none, or \
                 none</b>"
            )
        }
    };
    let spills = format!("{spilling} spill, {in_loops} of them in a loop");
    format!(
        "<p>{} kernels on their targets: {spills}; {paths}.</p>{}",
        all.len(),
        table.folded("All of them")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sanitize_shows_tools_of_a_gpu_and_kernels_of_the_simulator() {
        let kernel = |cases: u32, skipped: Option<&str>| json!({"cases": cases, "skipped": skipped});
        let kernels = [kernel(6, None), kernel(5, None), kernel(0, Some("needs more"))];
        let row = json!({"name": "memcheck", "launches": 11, "skipped": null, "kernels": kernels,
            "findings": []});
        let gpu = sanitize(&json!({"schedules": null, "clean": true, "kernels": [row]}));
        for part in [
            "<summary>1 tools</summary>",
            "<th>tool</th><th>kernels</th><th>launches</th>",
            "<td>memcheck</td><td class=\"number\">2</td><td class=\"number\">11</td><td>none</td>",
            "<td class=\"number\">1</td></tr>",
        ] {
            assert!(gpu.contains(part), "{part}: {gpu}");
        }
        let row = json!({"name": "fwd_a", "launches": 18, "skipped": null, "findings": []});
        let simulator = sanitize(&json!({"schedules": 3, "clean": true, "kernels": [row]}));
        for part in ["<summary>1 kernels</summary>", "<th>kernel</th><th>launches</th>", "<td>fwd_a</td>"] {
            assert!(simulator.contains(part), "{part}: {simulator}");
        }
    }
}
