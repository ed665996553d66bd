//! Measures attention on the GPUs of one machine, one process per rank, and prints JSON lines.
//!
//! `cargo run --release -p ferroflash-context-parallel --example ring -- --gpus 2 --tokens 16384,65536`
//!
//! The program needs NCCL (`libnccl.so`) when it runs. It starts the ranks itself. They first compare their
//! results with one GPU's, and end with an error if those differ. docs/several-gpus.md explains the lines.
mod checks;
mod decode;
mod processes;
mod rank;
mod recorder;
mod sequence;

use context_parallel::{Form, Nccl, NcclId, Transport as _};
use ferroflash::Attention;
use ferroflash::driver::{Harness as _, RawDriver};
use rank::Rank;
use std::time::{Duration, Instant};

/// The longest measurement takes half of it.
const LIMIT: Duration = Duration::from_secs(60);
/// All ranks start at once.
const JOINING: Duration = Duration::from_secs(30);

struct Options {
    gpus: usize,
    forms: Vec<Form>,
    tokens: Vec<usize>,
    /// The numbers of sequences that the tokens are.
    sequences: Vec<usize>,
    keys: Vec<usize>,
    rounds: usize,
    /// The most checks of a form; decode's follows if there is one.
    checks: usize,
    /// All ranks end after this time.
    seconds: u64,
    /// A rank that ends after the checks.
    lost: Option<usize>,
    /// Of a rank's process.
    rank: Option<(usize, NcclId)>,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let options = options()?;
    match &options.rank {
        None => {
            let last = u32::try_from(options.gpus - 1).unwrap_or(u32::MAX);
            RawDriver::primary(last).map_err(|error| format!("--gpus {}: {error}", options.gpus))?;
            processes::run(options.gpus, Duration::from_secs(options.seconds))
        }
        Some((rank, id)) => run(&options, *rank, id),
    }
}

const USAGE: &str = "ring [--gpus N] [--forms ring,gather,ulysses] [--tokens A,B] \
                     [--sequences A,B] [--keys A,B] [--rounds N] \
                     [--checks all|first|none] [--seconds N] [--lose RANK]";

/// Reads a number of at least `least`.
fn number(name: &str, value: &str, least: usize) -> Outcome<usize> {
    let number = value.parse().ok().filter(|number| *number >= least);
    number.ok_or_else(|| format!("{name} {value}: it must be a number of at least {least}").into())
}

fn options() -> Outcome<Options> {
    let mut options = Options {
        gpus: 2,
        forms: Form::ALL.to_vec(),
        tokens: (14..20).map(|power| 1 << power).collect(),
        sequences: vec![1],
        keys: vec![1 << 20],
        rounds: 5,
        checks: usize::MAX,
        seconds: 540,
        lost: None,
        rank: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let items = || value.split(',').filter(|item| !item.is_empty());
        let one = |least| number(&name, &value, least);
        let numbers = || items().map(|item| number(&name, item, 1)).collect::<Outcome<Vec<usize>>>();
        match name.as_str() {
            "--gpus" => options.gpus = one(1)?,
            "--forms" => options.forms = items().map(form).collect::<Outcome<_>>()?,
            "--tokens" => options.tokens = numbers()?,
            "--sequences" => options.sequences = numbers()?,
            "--keys" => options.keys = numbers()?,
            "--rounds" => options.rounds = one(1)?,
            "--checks" => options.checks = checks(&value)?,
            "--seconds" => options.seconds = one(1)? as u64,
            "--lose" => options.lost = Some(one(0)?),
            "--rank" => options.rank = Some((one(0)?, processes::id()?)),
            _ => return Err(format!("unknown option {name}: {USAGE}").into()),
        }
    }
    if let Some(lost) = options.lost.filter(|lost| *lost >= options.gpus) {
        return Err(format!("--lose {lost}: it must be a rank below {}", options.gpus).into());
    }
    Ok(options)
}

fn checks(value: &str) -> Outcome<usize> {
    match value {
        "all" => Ok(usize::MAX),
        "first" => Ok(1),
        "none" => Ok(0),
        _ => Err(format!("--checks {value}: all, first or none").into()),
    }
}

fn form(name: &str) -> Outcome<Form> {
    let of = |form: &Form| format!("{form:?}").eq_ignore_ascii_case(name);
    Form::ALL.into_iter().find(of).ok_or_else(|| format!("form {name}: ring, gather or ulysses").into())
}

/// Runs all measurements on one rank.
fn run(options: &Options, rank: usize, id: &NcclId) -> Outcome<()> {
    let attention = Attention::new(RawDriver::primary(rank as u32)?);
    let nccl = Nccl::new(rank, [rank, options.gpus], id, JOINING)?;
    let stream = attention.driver().stream()?;
    let limit = if options.lost.is_some() { Duration::from_secs(5) } else { LIMIT };
    let of = Rank { attention: &attention, nccl: &nccl, stream: &stream, limit };
    options.forms.iter().try_for_each(|form| checks::form(&of, *form, options.checks))?;
    if options.checks > 0 {
        decode::check(&of, 3001)?;
    }
    if let Some(lost) = options.lost {
        return lose(&of, lost);
    }
    for (tokens, sequences) in
        options.tokens.iter().flat_map(|of| options.sequences.iter().map(|n| (*of, *n)))
    {
        sequence::measure(&of, &options.forms, [tokens, sequences], options.rounds)?;
    }
    for keys in &options.keys {
        decode::measure(&of, *keys, options.rounds)?;
    }
    Ok(())
}

/// Ends a rank in the middle of its work. The others must end with an error, within their limit.
fn lose(of: &Rank<'_>, lost: usize) -> Outcome<()> {
    let rank = of.nccl.rank();
    if rank == lost {
        std::process::exit(0);
    }
    let begun = Instant::now();
    let Err(error) = checks::form(of, Form::Ring, 1) else {
        return Err(format!("rank {rank} has not noticed that rank {lost} has ended").into());
    };
    let seconds = begun.elapsed().as_secs_f64();
    println!("{{\"lost\": {lost}, \"rank\": {rank}, \"seconds\": {seconds:.1}, \"error\": \"{error}\"}}");
    Ok(())
}
