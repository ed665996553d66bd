//! The page of a report: one HTML file that needs no network.
use super::{Report, Verified};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// Returns the complete page.
pub(super) fn html(report: &Report) -> String {
    let mut body = String::new();
    let title = format!("FerroFlash {} on {}", report.version, report.device);
    let counts = Verified::of(report.verify.as_ref());
    let verdict = match report.dry_run {
        true => format!("a dry run in the simulator, which measures nothing: {counts}"),
        false => counts.to_string(),
    };
    let class = if report.passed { "good" } else { "bad" };
    let _ = write!(
        body,
        "<h1>{}</h1><p>{}, <code>{}</code>, {:.0} s: <b class=\"{class}\">{verdict}</b>.</p>",
        escape(&title),
        report.date,
        escape(&report.command),
        report.seconds
    );
    card(report, &mut body);
    if let Some(call) = &report.first_call {
        first_call(call, &mut body);
    }
    if let Some(verify) = &report.verify {
        verified(verify, report.seed, &mut body);
    }
    if let Some(bench) = &report.bench {
        measured(bench, report, &mut body);
    }
    if let Some(plot) = &report.plot {
        // Removes the XML prolog, which must not occur inside a page.
        let _ = write!(body, "<figure>{}</figure>", plot.find("<svg").map_or("", |at| &plot[at..]));
    }
    if !report.missing.is_empty() {
        let items: String = report.missing.iter().map(|what| format!("<li>{}</li>", escape(what))).collect();
        let _ = write!(body, "<h2>Missing</h2><ul>{items}</ul>");
    }
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{}</title><style>{STYLE}</style></head><body>\
         {body}</body></html>\n",
        escape(&title)
    )
}

fn card(report: &Report, body: &mut String) {
    let limits = &report.limits;
    let clock = |mhz: Option<u32>| mhz.map_or("unknown".to_owned(), |mhz| format!("{mhz} MHz"));
    let rows = [
        ("display driver", report.driver.clone()),
        ("compute capability", limits.compute_capability.clone()),
        ("multiprocessors", limits.sms.to_string()),
        ("shared memory of a block", format!("{} KiB", limits.shared_memory_per_block_bytes >> 10)),
        ("L2 cache", format!("{} MiB", limits.l2_bytes >> 20)),
        ("memory", format!("{} MiB", limits.memory_bytes >> 20)),
        ("highest SM clock", clock(report.most_mhz[0])),
        ("highest memory clock", clock(report.most_mhz[1])),
        ("before", report.clocks[0].clone()),
        ("after", report.clocks[1].clone()),
    ];
    let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
    let _ = write!(body, "<h2>The card</h2>{}", table(&["", ""], &rows));
}

fn first_call(call: &Value, body: &mut String) {
    let steps = [
        ("the driver's start-up", "driver_ms"),
        ("memory and inputs", "inputs_ms"),
        ("loading the embedded kernel", "load_ms"),
        ("launch, and the output back", "launch_ms"),
        ("in all", "total_ms"),
    ];
    let rows = steps.map(|(name, key)| vec![name.to_owned(), number(&call[key], 1)]);
    let _ = write!(
        body,
        "<h2>First call</h2><p>{} from {}, compiled now.</p>{}",
        text(&call["problem"]),
        text(&call["loaded_from"]),
        table(&["step", "ms"], &rows)
    );
}

fn verified(verify: &Value, seed: u64, body: &mut String) {
    let mut families = BTreeMap::<String, Vec<&Value>>::new();
    for row in list(&verify["kernels"]) {
        families.entry(text(&row["family"])).or_default().push(row);
    }
    let rows = families.iter().map(|(family, rows)| {
        let sum = |key: &str| rows.iter().filter_map(|row| row[key].as_u64()).sum::<u64>();
        let ran =
            rows.iter().filter(|row| row["skipped"].is_null() && row["cases"].as_u64() > Some(0)).count();
        let ratio = |row: &&Value| row["worst_ratio"].as_f64().unwrap_or(f64::INFINITY);
        let worst = rows.iter().map(ratio).fold(0.0, f64::max);
        let failures: usize = rows.iter().map(|row| list(&row["failures"]).len()).sum();
        vec![
            family.clone(),
            ran.to_string(),
            sum("cases").to_string(),
            format!("{worst:.3}"),
            failures.to_string(),
            sum("left").to_string(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let heads = ["family", "kernels", "problems", "largest error / allowed", "failures", "problems left out"];
    let _ = write!(
        body,
        "<h2>Right: a sample of every family against f64</h2><p>Drawn with seed {seed}. An element may be \
         off by twice the error of a naive 16-bit implementation and 1e-5.</p>{}",
        table(&heads, &rows)
    );
    let failures = list(&verify["kernels"]).iter().flat_map(|row| {
        list(&row["failures"]).iter().map(move |why| format!("{}: {}", text(&row["name"]), text(why)))
    });
    let failures: String = failures.take(50).map(|why| format!("<li>{}</li>", escape(&why))).collect();
    if !failures.is_empty() {
        let _ = write!(body, "<h3 class=\"bad\">Wrong</h3><ul>{failures}</ul>");
    }
}

fn measured(bench: &Value, report: &Report, body: &mut String) {
    let overhead = &bench["launch_overhead_us"];
    let _ = write!(
        body,
        "<h2>Fast: every suite</h2><p>Microseconds of a launch on the device: median and 90th percentile. \
         Hot: many launches in one CUDA graph. Cold: the L2 cache is flushed before each launch. A launch \
         costs the host {} us (p90 {}).</p>",
        number(&overhead["p50"], 2),
        number(&overhead["p90"], 2)
    );
    if let Some(held) = &report.model {
        let _ = write!(
            body,
            "<p>Predicted: by the model of the L4 (docs/l4-model.md), which was made without one; {}.</p>",
            escape(&held.to_string())
        );
    }
    let mut suites = BTreeMap::<String, Vec<&Value>>::new();
    for row in list(&bench["rows"]) {
        suites.entry(text(&row["suite"])).or_default().push(row);
    }
    for (suite, rows) in suites {
        let row = |row: &&Value| {
            let mut cells = vec![text(&row["shape"]), text(&row["timing"])];
            let numbers = [("p50_us", 1), ("p90_us", 1), ("tflops", 1), ("gb_per_s", 0), ("sm_mhz", 0)];
            cells.extend(numbers.map(|(key, digits)| number(&row[key], digits)));
            if report.model.is_some() {
                let [least, most] = [0, 1].map(|at| number(&row["predicted_us"][at], 1));
                let ratio = row["p50_us"].as_f64().zip(row["predicted_us"][1].as_f64());
                cells.push(if most.is_empty() { String::new() } else { format!("{least} to {most}") });
                cells.push(ratio.map_or(String::new(), |(us, most)| format!("{:.2}", us / most)));
            }
            cells.push(text(&row["entry"]));
            cells
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        let mut heads = vec!["shape", "timing", "p50 us", "p90 us", "TFLOP/s", "GB/s", "SM MHz"];
        if report.model.is_some() {
            heads.extend(["predicted us", "measured / most predicted"]);
        }
        heads.push("kernel");
        let _ = write!(body, "<h3>{}</h3>{}", escape(&suite), table(&heads, &rows));
    }
}

fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let heads: String = heads.iter().map(|head| format!("<th>{}</th>", escape(head))).collect();
    let cell = |cell: &String| {
        let class = if cell.parse::<f64>().is_ok() { " class=\"number\"" } else { "" };
        format!("<td{class}>{}</td>", escape(cell))
    };
    let row = |row: &Vec<String>| format!("<tr>{}</tr>", row.iter().map(cell).collect::<String>());
    let rows: String = rows.iter().map(row).collect();
    format!("<div class=\"scroll\"><table><tr>{heads}</tr>{rows}</table></div>")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value, digits: usize) -> String {
    value.as_f64().map_or_else(String::new, |x| format!("{x:.digits$}"))
}

/// Escapes text for HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_has_every_step_and_escapes_what_it_is_told() {
        let row = json!({
            "suite": "prefill", "shape": "a<b", "entry": "fwd", "timing": "cold",
            "p50_us": 12.5, "p90_us": 13.0,
            "tflops": 99.5, "gb_per_s": 250.0, "sm_mhz": 1695.0, "predicted_us": [10.0, 25.0]
        });
        let mut bench = json!({
            "launch_overhead_us": {"p50": 1.25, "p90": 2.0},
            "rows": [row]
        });
        let held = super::super::model::hold("NVIDIA L4", &mut bench.clone());
        assert_eq!(held, None, "no suite has the shape");
        let mut report = Report {
            version: "9.9",
            date: "2026-11-23".into(),
            command: "ferroflash report".into(),
            device: "NVIDIA <L4>".into(),
            dry_run: false,
            driver: "580.1".into(),
            limits: Limits::of(&ferroflash::Capabilities::PROFILES[0].1),
            most_mhz: [Some(2040), None],
            clocks: ["before".into(), "after".into()],
            seed: 7,
            seconds: 12.0,
            passed: true,
            first_call: Some(json!({"problem": "f16", "loaded_from": "PTX", "total_ms": 341.25})),
            verify: Some(json!({"kernels": [
                {"name": "k", "family": "forward", "cases": 9, "worst_ratio": 0.25, "failures": []},
                {"name": "l", "family": "forward", "left": 3, "worst_ratio": 0.0, "failures": []}]})),
            bench: None,
            plot: Some("<?xml?><svg>drawn</svg>".into()),
            model: None,
            missing: vec!["nothing & all".into()],
            folder: "here".into(),
        };
        assert!(report.to_string().starts_with("NVIDIA <L4>, driver 580.1; after\n1 kernels"), "{report}");
        assert!(report.to_string().contains("all within their bounds; 1 did not run all"), "{report}");
        let page = html(&report);
        for words in
            ["NVIDIA &lt;L4&gt;", "2040 MHz", "341.2", "0.250", "<svg>drawn", "nothing &amp; all", "seed 7"]
        {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(
            page.contains("1 kernels verified, all within their bounds; 1 did") && !page.contains("<?xml")
        );

        report.verify = Some(json!({"kernels": [{"name": "l", "left": 3, "failures": []}]}));
        assert!(report.to_string().contains("\nno kernel verified; 1 did not run all of"), "{report}");
        let label = crate::bench::suite::read(None, &[]).expect("built in")["prefill"][0].label.clone();
        bench["rows"][0]["shape"] = label.clone().into();
        bench["rows"][0]["entry"] = "fwd_f16_d64_full_128x64".into();
        report.model = super::super::model::hold("NVIDIA L4", &mut bench);
        (report.bench, report.passed) = (Some(bench), false);
        report.verify = Some(json!({"kernels": [{"name": "k", "cases": 9, "failures": ["far off"]}]}));
        let page = html(&report);
        for words in [label.as_str(), "1695", "predicted us", "measured over predicted: geomean", "1 WRONG"] {
            assert!(page.contains(words), "{words}: {page}");
        }
        report.dry_run = true;
        assert!(report.to_string().starts_with("NVIDIA <L4>: a dry run, without"), "{report}");
    }
}
