//! The page of a report: one HTML file that needs no network.
use super::{Report, Verified};
use crate::error::Error;
use crate::template;
use minijinja::context;
use minijinja::value::{Serde, Value};

/// Maximum number of failures on the page. The JSON has all of them.
const MOST_FAILURES: usize = 50;

/// Returns the complete page.
pub(super) fn html(report: &Report) -> Result<String, Error> {
    let kernels = report.verify.iter().filter_map(|verify| verify["kernels"].as_array()).flatten();
    let failures = kernels.flat_map(|row| {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let all = row["failures"].as_array().into_iter().flatten();
        all.map(move |why| format!("{}: {}", text(&row["name"]), text(why)))
    });
    let values = context! {
        style => include_str!("style.css"),
        verdict => Verified::of(report.verify.as_ref()).to_string(),
        wrong => failures.take(MOST_FAILURES).collect::<Vec<_>>(),
        held => report.model.as_ref().map(ToString::to_string),
        plot => report.plot.clone(),
        ..Value::from(Serde(report))
    };
    template::fill(include_str!("page.html"), values)
}

#[cfg(test)]
mod tests {
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
            limits: (&ferroflash::Capabilities::PROFILES[0].1).into(),
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
            plot: Some("<svg>drawn</svg>".into()),
            model: None,
            missing: vec!["nothing & all".into()],
            folder: "here".into(),
        };
        assert!(report.to_string().starts_with("NVIDIA <L4>, driver 580.1; after\n1 kernels"), "{report}");
        assert!(report.to_string().contains("all within their bounds; 1 did not run all"), "{report}");
        let page = html(&report).expect("filled");
        for words in
            ["NVIDIA &lt;L4&gt;", "2040 MHz", "341.2", "0.250", "<svg>drawn", "nothing &amp; all", "seed 7"]
        {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(page.contains("1 kernels verified, all within their bounds; 1 did"), "{page}");

        report.verify = Some(json!({"kernels": [{"name": "l", "left": 3, "failures": []}]}));
        assert!(report.to_string().contains("\nno kernel verified; 1 did not run all of"), "{report}");
        let label = crate::bench::suite::read(None, &[]).expect("built in")["prefill"][0].label.clone();
        bench["rows"][0]["shape"] = label.clone().into();
        bench["rows"][0]["entry"] = "fwd_f16_d64_full_128x64".into();
        report.model = super::super::model::hold("NVIDIA L4", &mut bench);
        (report.bench, report.passed) = (Some(bench), false);
        report.verify = Some(json!({"kernels": [{"name": "k", "cases": 9, "failures": ["far off"]}]}));
        let page = html(&report).expect("filled");
        for words in [label.as_str(), "1695", "predicted us", "measured over predicted: geomean", "1 WRONG"] {
            assert!(page.contains(words), "{words}: {page}");
        }
        report.dry_run = true;
        assert!(report.to_string().starts_with("NVIDIA <L4>: a dry run, without"), "{report}");
    }
}
