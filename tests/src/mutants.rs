//! `ferroflash-mutants`: the mutation score of every entry, written to docs/evidence.
use clap::Parser;
use ferroflash::{DType, ENTRIES, EntryInfo};
use ferroflash_tests::mutation::{Evidence, score, write};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::process::ExitCode;

/// Break every kernel in every way, and count what the simulator and the results notice.
#[derive(Parser)]
struct Arguments {
    /// Only entries whose name contains this; may be repeated. Without it: every f16 entry, and of bf16 one of each order of work.
    #[arg(long)]
    entry: Vec<String>,
    /// Folder for mutation.json and mutation.md.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/evidence/simulator"))]
    out: PathBuf,
}

/// bf16 entries are the f16 ones with other conversions: an overlapped one, a sequential one, one whose warps split the keys.
const BF16: [&str; 3] = ["fwd_bf16_d64_full_128x32", "fwd_bf16_d128_causal_128x64", "fwd_bf16_d64_causal_32x128_k2"];

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let chosen = |entry: &&EntryInfo| match &arguments.entry[..] {
        [] => entry.dtype == DType::F16 || BF16.contains(&entry.symbol),
        names => names.iter().any(|name| entry.symbol.contains(name.as_str())),
    };
    let entries: Vec<&'static EntryInfo> = ENTRIES.iter().filter(chosen).collect();
    let (mut scores, mut evidence) = (vec![], Evidence::new(vec![]));
    for (index, entry) in entries.iter().enumerate() {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{prefix} [{bar:32}] {pos}/{len} ({eta})  {msg}");
        bar.set_style(style.expect("a valid template").progress_chars("=> "));
        bar.set_prefix(format!("{}/{}", index + 1, entries.len()));
        bar.set_message(entry.symbol);
        let score = score(entry, |mutants| bar.set_length(mutants as u64), || bar.inc(1));
        bar.finish_and_clear();
        println!("{}: {} of {} caught", entry.symbol, score.caught(), score.mutants);
        for survivor in score.unexplained() {
            println!(
                "  unexplained: line {} {:?} {} at {}",
                survivor.line,
                survivor.operator,
                survivor.description,
                survivor.source.join(" from ")
            );
        }
        scores.push(score);
        evidence = Evidence::new(scores.clone());
        // After each: a run takes long.
        if let Err(error) = write(&evidence, &arguments.out) {
            eprintln!("error: {}: {error}", arguments.out.display());
            return ExitCode::FAILURE;
        }
    }
    let unexplained = evidence.entries.iter().flat_map(|score| score.unexplained()).count();
    println!("{} mutants, {} survive, {unexplained} of these without a reason", evidence.mutants, evidence.survivors);
    if unexplained > 0 || evidence.mutants == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
