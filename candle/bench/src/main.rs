//! Compares FerroFlash with candle-flash-attn's own kernels and with candle's plain attention: in one
//! process, in turns, on the same tensors. Usage: `candle-bench [check | calls | model | all] [--quick]
//! [--out FILE]`. Prints each result as a line of JSON, and writes all results to FILE.
mod calls;
mod check;
mod clock;
mod end_to_end;
mod graph;
mod model;
mod reference;
mod side;
mod tally;

use candle::{Device, Result};
use clock::Clock;
use serde_json::{json, Value};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let what = arguments.first().map_or("all", |first| first.as_str());
    let out = arguments.iter().position(|a| a == "--out").and_then(|at| arguments.get(at + 1));
    let device = Device::new_cuda(0)?;
    if (what == "check" || what == "all") && !check::all(&device)? {
        std::process::exit(1);
    }
    let clock =
        if has("--quick") { Clock { rounds: 3, turn: 0.003 } } else { Clock { rounds: 10, turn: 0.01 } };
    let sides: Vec<_> = side::Side::all().into_iter().map(side::Side::name).collect();
    let mut all = json!({"command": arguments.join(" "), "sides": sides, "rounds": clock.rounds});
    // Writes the file after each part, because a run may be cut short.
    let mut keep = |name: &str, rows: Vec<Value>| -> Result<()> {
        match all.get_mut(name).and_then(Value::as_array_mut) {
            Some(some) => some.extend(rows),
            None => all[name] = Value::Array(rows),
        }
        out.map_or(Ok(()), |out| std::fs::write(out, format!("{all:#}\n")).map_err(candle::Error::wrap))
    };
    if what == "calls" || what == "all" {
        keep("calls", calls::paged(&device, clock)?)?;
        keep("calls", calls::dense(&device, clock)?)?;
        keep("calls", calls::varlen(&device, clock)?)?;
    }
    if what == "model" || what == "all" {
        let model = end_to_end::model(&device)?;
        let config = model.config;
        let of = json!({"name": "Llama, random", "parameters": model.parameters(), "layers": config.layers,
            "heads": config.heads, "head_dim": config.head_dim, "dtype": "f16"});
        keep("model", vec![of])?;
        keep("decode", end_to_end::decode(&model, &device, clock)?)?;
        keep("prefill", end_to_end::prefill(&model, &device, clock)?)?;
        keep("batch", end_to_end::batch(&model, &device, if has("--quick") { 1 } else { 3 })?)?;
    }
    Ok(())
}
