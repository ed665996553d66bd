//! The processes of the ranks.
use crate::Outcome;
use context_parallel::{Nccl, NcclId};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The variable of a rank's environment that has the identity of the communicator.
const ID: &str = "FERROFLASH_NCCL_ID";

/// Starts a process for each rank, with the own arguments. If one of them fails, or the time is over, ends
/// the others.
pub fn run(gpus: usize, limit: Duration) -> Outcome<()> {
    let id: String = Nccl::id()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).args(["--rank", &rank.to_string()]).env(ID, &id).spawn()
    };
    let mut ranks = Vec::new();
    let outcome = (0..gpus)
        .try_for_each(|rank| start(rank).map(|child| ranks.push(child)).map_err(Into::into))
        .and_then(|()| wait(&mut ranks, limit));
    for rank in &mut ranks {
        // A rank that has ended has nothing to kill.
        let _ = rank.kill();
        let _ = rank.wait();
    }
    outcome
}

/// Waits until all ranks have succeeded.
fn wait(ranks: &mut [Child], limit: Duration) -> Outcome<()> {
    let begun = Instant::now();
    loop {
        let mut running = 0;
        for (rank, child) in ranks.iter_mut().enumerate() {
            match child.try_wait()? {
                None => running += 1,
                Some(status) if status.success() => {}
                Some(status) => return Err(format!("rank {rank} has ended: {status}").into()),
            }
        }
        if running == 0 {
            return Ok(());
        }
        if begun.elapsed() > limit {
            return Err(format!("the ranks have not ended within {limit:?}; take fewer tokens").into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the identity of the communicator, in a rank's process.
pub fn id() -> Outcome<NcclId> {
    let text = std::env::var(ID)?;
    let byte = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2).unwrap_or(""), 16);
    let bytes = (0..size_of::<NcclId>()).map(byte).collect::<Result<Vec<u8>, _>>()?;
    Ok(NcclId::try_from(bytes).map_err(|_| "an identity has 128 bytes")?)
}
