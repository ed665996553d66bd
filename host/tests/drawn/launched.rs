//! The launches of random requests on the fake driver.
use super::{ROOM, Request, elsewhere};
use crate::fake::{FakeDriver, Launch};
use ferroflash::plan::ScratchBytes;
use ferroflash::request::*;
use ferroflash::*;

/// The result of a request.
pub struct Outcome {
    pub symbol: &'static str,
    pub grid: [u32; 3],
    pub reason: &'static str,
    pub workspace: u64,
    pub counters: u64,
    pub launches: Vec<Result<Launch, Error>>,
}

impl Request {
    /// Plans the request. Launches the plan with the request's tensors, with tensors at other addresses, and
    /// with tensors that TMA does not accept.
    pub fn launch(&self, attention: &Attention<FakeDriver>) -> Result<Outcome, Error> {
        let mut launches = vec![];
        let mut note = |outcome: Result<(), Error>| {
            let mut made = attention.driver().launches.lock().expect("no panic");
            launches.extend(made.drain(..).map(Ok));
            launches.extend(outcome.err().map(Err));
        };
        macro_rules! launch {
            ($plan:expr, $request:expr) => {
                // SAFETY: the fake driver runs no kernel.
                note(unsafe { attention.launch($plan, $request, &0) })
            };
        }
        macro_rules! outcome {
            ($plan:expr, $workspace:expr, $counters:expr) => {
                Outcome {
                    symbol: $plan.contract().symbol,
                    grid: $plan.grid(),
                    reason: $plan.reason(),
                    workspace: $workspace,
                    counters: $counters,
                    launches,
                }
            };
        }
        Ok(match self {
            Request::Attention(f, counters) => {
                let (even, counters) = match &f.kv {
                    KeysValues::Cache(cache) => (cache.max_k.is_multiple_of(8), *counters),
                    _ => (f.q.shape[1].is_multiple_of(2), None),
                };
                let none = f.scratch == Scratch::None;
                let plan = attention.plan(&if none && even { f.scratch(Scratch::Fastest) } else { *f })?;
                let memory = Scratch::Memory { workspace: ROOM, counters };
                let f = if none { f.scratch(memory) } else { *f };
                let other = elsewhere(&f, counters);
                let mut repeats = other;
                match repeats.kv.tensors_mut() {
                    Some([k, _]) => k.strides[2] = 0,
                    None => repeats.q.strides[2] = 0,
                }
                launch!(&plan, &f);
                launch!(&plan, &other);
                launch!(&plan, &repeats);
                let ScratchBytes { workspace, counters } = plan.scratch_bytes();
                outcome!(plan, workspace, counters)
            }
            Request::Append(append) => {
                let plan = attention.plan(append)?;
                let mut other = *append;
                other.slots.address += 4096;
                launch!(&plan, append);
                launch!(&plan, &other);
                outcome!(plan, 0, 0)
            }
            Request::Merge(states, o, lse, sinks) => {
                let mut merge = Merge::new(states, *o);
                (merge.lse, merge.sinks) = (*lse, *sinks);
                let plan = attention.plan(&merge)?;
                let mut other = merge;
                other.o.address += 1 << 42;
                launch!(&plan, &merge);
                launch!(&plan, &other);
                outcome!(plan, 0, 0)
            }
        })
    }
}
