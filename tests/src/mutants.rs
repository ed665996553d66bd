//! `ferroflash-mutants`: computes the mutation score of every kernel in this build, and writes the score to
//! docs/evidence. `cargo xtask mutate` builds this program with every kernel and runs it.
use clap::Parser;
use ferroflash_tests::is_carried;
use ferroflash_tests::mutation::{Evidence, STACK, Sample, Subject, score, unused_excuses, write};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Break every kernel in every way, and count the mutants that the simulator or a wrong result reveals.
#[derive(Parser)]
struct Arguments {
    /// Test only kernels whose name contains this text; may be repeated.
    #[arg(long)]
    entry: Vec<String>,
    /// Keep the scores of other kernels in the folder.
    #[arg(long)]
    keep: bool,
    /// Largest number of mutants per operator and kernel [default: all].
    #[arg(long)]
    sample: Option<usize>,
    /// Seed of the sample.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Start no kernel after this number of seconds.
    #[arg(long, default_value_t = u64::MAX)]
    seconds: u64,
    /// Number of threads [default: the number of processors].
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Folder for mutation.json and mutation.md.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/evidence/simulator"))]
    out: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let workers = rayon::ThreadPoolBuilder::new().num_threads(arguments.jobs).stack_size(STACK);
    let (start, sample) = (Instant::now(), Sample { each: arguments.sample, seed: arguments.seed });
    if let Err(error) = workers.build_global() {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    let named = |symbol: &str| arguments.entry.iter().any(|name| symbol.contains(name.as_str()));
    let chosen = |subject: &Subject| arguments.entry.is_empty() || named(subject.kernel.symbol);
    let mut subjects: Vec<_> = Subject::all().filter(chosen).collect();
    let is_whole = arguments.entry.is_empty() && arguments.sample.is_none();
    subjects.retain(|subject| is_carried(subject.kernel.symbol));
    let mut left_out = 0;
    let kept = if arguments.keep { Evidence::read(&arguments.out) } else { Ok(Evidence::default()) };
    let mut evidence = match kept {
        Ok(evidence) => evidence,
        Err(error) => return failed(&arguments.out, &error),
    };
    for (index, subject) in subjects.iter().enumerate() {
        if start.elapsed().as_secs() >= arguments.seconds {
            left_out = subjects.len() - index;
            println!("{left_out} kernels did not run: the time is up");
            break;
        }
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{prefix} [{bar:32}] {pos}/{len} ({eta})  {msg}");
        bar.set_style(style.expect("a valid template").progress_chars("=> "));
        bar.set_prefix(format!("{}/{}", index + 1, subjects.len()));
        bar.set_message(subject.kernel.symbol);
        let score = score(subject, sample, |mutants| bar.set_length(mutants as u64), || bar.inc(1));
        bar.finish_and_clear();
        let seconds = start.elapsed().as_secs();
        let (entry, caught, mutants) = (score.entry, score.caught(), score.mutants);
        println!("{entry}: {caught} of {mutants} caught, {} change nothing ({seconds} s)", score.unchanged());
        for survivor in score.unexplained() {
            println!(
                "  unexplained: line {} {:?} {} at {}",
                survivor.line,
                survivor.operator,
                survivor.description,
                survivor.source.join(" from ")
            );
        }
        evidence.put(score);
        // The program writes the files after each kernel, because a run takes long.
        if let Err(error) = write(&evidence, &arguments.out) {
            return failed(&arguments.out, &error);
        }
    }
    let unexplained = evidence.unexplained();
    println!(
        "{} mutants, {} survive, {unexplained} of these without a reason",
        evidence.mutants, evidence.survivors
    );
    let unused = if is_whole && left_out == 0 { unused_excuses() } else { Vec::new() };
    for excuse in &unused {
        println!("no mutant needs this excuse: {excuse}");
    }
    // A sample may consist of one harmless mutant. This mutant alone may exceed the share of mutants that a
    // whole run may miss.
    let is_sharp = if arguments.sample.is_none() { evidence.is_sharp() } else { evidence.mutants > 0 };
    if unexplained > 0 || !unused.is_empty() || !is_sharp { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn failed(folder: &Path, error: &std::io::Error) -> ExitCode {
    eprintln!("error: {}: {error}", folder.display());
    ExitCode::FAILURE
}
