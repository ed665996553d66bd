//! Predicts the time of attention on several GPUs from the speeds of one GPU and of its link, and prints
//! tables.
//!
//! `cargo run -p ferroflash-context-parallel --example predict` prints the tables of docs/several-gpus.md.
//! For your machine: `.. --example predict -- --gpus 8 --link 370 --heads 32 --heads-k 8 --tokens 65536`.
mod model;
mod tables;

use context_parallel::Form;
use model::{Machine, Pass, Shape, ideal, pays_from, seconds, sent};

const USAGE: &str = "predict [--gpus N] [--link GB/s] [--forward TFLOP/s] [--backward TFLOP/s] [--heads N] \
                     [--heads-k N] [--head-dim N] [--tokens N]";

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.is_empty() {
        for (_, table) in tables::all() {
            println!("{table}\n");
        }
        return Ok(());
    }
    let (mut machine, mut shape) = (Machine::H200, Shape { heads: [32.0, 8.0], columns: 128.0 });
    let mut tokens = 65536.0;
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} needs a value: {USAGE}", pair[0]).into()) };
        let number = value.parse().ok().filter(|number: &f64| *number > 0.0 && number.is_finite());
        let number = number.ok_or_else(|| format!("{name} {value}: it must be a number above 0"))?;
        match name.as_str() {
            "--gpus" => machine.ranks = number,
            "--link" => machine.link = number * 1e9,
            "--forward" => machine.rates[0] = number * 1e12,
            "--backward" => machine.rates[1] = number * 1e12,
            "--heads" => shape.heads[0] = number,
            "--heads-k" => shape.heads[1] = number,
            "--head-dim" => shape.columns = number,
            "--tokens" => tokens = number,
            _ => return Err(format!("unknown option {name}: {USAGE}").into()),
        }
    }
    for form in Form::ALL {
        for pass in [Pass::Forward, Pass::Backward] {
            let positions = tokens / machine.ranks;
            let Some(time) = seconds(form, pass, &shape, &machine, positions) else {
                println!("{form:?}, {pass:?}: there are more ranks than heads");
                continue;
            };
            let ideal = ideal(pass, &shape, &machine, positions);
            let bytes = sent(form, pass, &shape, machine.ranks, positions).unwrap_or(0.0);
            let from = pays_from(form, &[pass], &shape, &machine);
            println!(
                "{form:?}, {pass:?}: {:.3} ms, {:.1} % of the ideal, {:.1} MB sent by each rank; 90 % \
                 from {:.0} tokens on",
                time * 1e3,
                100.0 * ideal / time,
                bytes / 1e6,
                from.unwrap_or(f64::NAN)
            );
        }
    }
    println!("predicted, not measured");
    Ok(())
}
