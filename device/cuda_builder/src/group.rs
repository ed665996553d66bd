//! Compiles the entries that are not in the cache, of all targets, on all cores.

use std::cmp::Reverse;
use std::collections::BTreeSet;
#[cfg(feature = "archive")]
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::SystemTime;

use crate::cache::{Cache, Made, State};
use crate::cargo::{Compiled, Invocation};
use crate::module::Ptx;
use crate::outer::Tokens;
use crate::progress::Progress;
use crate::workplace::{Workplace, cores};
use crate::{Contract, Error, stamp};

/// The number of entries that are worth a compiler. Every compiler checks the whole crate, which takes about
/// as long as two entries.
const WORTH_A_COMPILER: usize = 4;

/// Largest number of entries per run of a compiler. At the end of each run, the cache receives the modules of
/// the run. An interrupted build therefore loses little. The progress also advances only at the end of a run.
/// Runs of 24 entries would take 5 % more processor time for all entries, because every run checks the crate.
const BATCH: usize = 48;

/// The part of a build for one target.
pub(crate) struct Group<'a> {
    pub invocation: Invocation<'a>,
    /// The symbols of all contracts of the crate. A kernel without a contract is an error, so modules cached
    /// for other contracts are not used.
    pub contracted: &'a [&'static str],
    /// The folder of cached modules.
    pub folder: PathBuf,
    /// The working folder of all compilers for the target. Builds of other crates use it too, so that `core`
    /// is compiled once.
    pub compilers: PathBuf,
    /// Number of compilers that run at the same time; `None` means one per core.
    pub jobs: Option<usize>,
    /// Receives a message for each finished module.
    pub progress: &'a Progress,
}

/// The result of building a group.
#[derive(Default)]
pub(crate) struct Built {
    /// The modules, in the order of the contracts.
    pub modules: Vec<(Contract, String)>,
    /// The kernels of the crate that the caller did not ask for.
    pub others: BTreeSet<String>,
    pub inputs: BTreeSet<PathBuf>,
    pub warnings: String,
}

impl Group<'_> {
    fn cache(&self) -> Cache<'_> {
        let recipe = (self.invocation.recipe(), self.contracted);
        let (workspace, package) = (self.invocation.workspace, self.invocation.package);
        Cache::open(&self.folder.join("cache"), workspace, package, recipe)
    }

    /// The number of `contracts` that [`build`] would compile.
    pub(crate) fn missing(&self, contracts: &[&Contract]) -> Result<usize, Error> {
        let Some(kept) = self.cache().current() else { return Ok(contracts.len()) };
        let is_kept = |contract: &&&Contract| {
            stamp::directives(contract).map(|directives| kept.module(contract.symbol, &directives).is_some())
        };
        contracts.iter().map(|contract| is_kept(&contract).map(|kept| usize::from(!kept))).sum()
    }

    /// The modules of `contracts` in the cache, and the batches of the others.
    fn part<'p>(&'p self, contracts: &'p [&'p Contract]) -> Result<Part<'p>, Error> {
        let directives: Vec<_> = contracts.iter().map(|c| stamp::directives(c)).collect::<Result<_, _>>()?;
        let cache = self.cache();
        let kept = cache.current();
        let find = |(contract, directives): (&&Contract, &String)| {
            kept.as_ref().and_then(|state| state.module(contract.symbol, directives))
        };
        let texts: Vec<_> = contracts.iter().zip(&directives).map(find).collect();
        let missing = (0..texts.len()).filter(|&n| texts[n].is_none());
        let missing: Vec<_> =
            missing.map(|place| Wanted { place, symbol: contracts[place].symbol }).collect();
        let built = match kept {
            Some(state) if missing.is_empty() => Built::of(state),
            _ => Built::default(),
        };
        let asked = missing.iter().map(|wanted| wanted.symbol).collect();
        let (compilers, batches) = deal(&missing, self.jobs);
        let done = Mutex::new((built, texts));
        let filled = Mutex::new(Filled::No);
        Ok(Part { group: self, contracts, directives, cache, asked, compilers, batches, filled, done })
    }

    /// Runs one compiler for the entries of `batch`. `asked` contains the entries of all batches.
    fn compile_batch(
        &self,
        folder: &Path,
        batch: &[Wanted],
        asked: &BTreeSet<&str>,
        directives: &[String],
    ) -> Result<Batch, Error> {
        let symbols: Vec<_> = batch.iter().map(|wanted| wanted.symbol).collect();
        let compiled = self.invocation.compile(&symbols, folder)?;
        let parsed = Ptx::parse(&compiled.ptx)?;
        let module = |wanted: &Wanted| {
            let text = parsed.module(wanted.symbol, &directives[wanted.place]);
            text.ok_or_else(|| Error::MissingEntry { symbol: wanted.symbol.to_owned() })
        };
        let texts = batch.iter().map(module).collect::<Result<_, _>>()?;
        let others = parsed.entries().filter(|symbol| !asked.contains(symbol));
        let others = others.map(str::to_owned).collect();
        Ok(Batch { compiled, texts, others })
    }

    /// Makes a module of every kernel in the crate, without launch contracts.
    pub(crate) fn build_all(&self) -> Result<Built, Error> {
        let place = Workplace::take(&self.compilers, 0, cores())?;
        let compiled = self.invocation.compile(&[], &place.folder)?;
        let mut built = Built::default();
        let ptx = Ptx::parse(&compiled.ptx)?;
        // The caller did not name these symbols, so nobody owns them; the build leaks them.
        let contracts = ptx.entries().map(|symbol| Contract::new(symbol.to_owned().leak(), 0));
        built.modules.extend(contracts.filter_map(|c| Some((c, ptx.module(c.symbol, "")?))));
        built.take(&compiled);
        Ok(built)
    }

    /// Caches these modules, each with its symbol, as if this build had compiled them from `inputs`, and had
    /// begun at `started`. Modules without a contract in `contracts` are not cached.
    #[cfg(feature = "archive")]
    pub(crate) fn adopt(
        &self,
        contracts: &[&Contract],
        (inputs, started): (&BTreeSet<PathBuf>, SystemTime),
        modules: &HashMap<String, String>,
    ) -> Result<(), Error> {
        let directives: Vec<_> = contracts.iter().map(|c| stamp::directives(c)).collect::<Result<_, _>>()?;
        let pairs =
            contracts.iter().map(|contract| contract.symbol).zip(directives.iter().map(String::as_str));
        let modules: Vec<_> = pairs
            .filter_map(|(symbol, directives)| Some((symbol, directives, modules.get(symbol)?.as_str())))
            .collect();
        let made = Made { modules: &modules, others: &BTreeSet::new(), warnings: "" };
        self.cache().keep(inputs, started, &made)
    }
}

/// The number of compilers, and the batches of entries. Neighbours in the table take about the same time, so
/// they go to different batches.
pub(crate) fn deal<T: Copy>(wanted: &[T], jobs: Option<usize>) -> (usize, Vec<Vec<T>>) {
    let most = wanted.len().div_ceil(WORTH_A_COMPILER);
    let compilers = jobs.unwrap_or_else(cores).clamp(1, most.max(1)).min(wanted.len());
    if compilers == 0 {
        return (0, Vec::new());
    }
    let batches = wanted.len().div_ceil(BATCH).next_multiple_of(compilers);
    let batch = |n: usize| wanted.iter().skip(n).step_by(batches).copied().collect::<Vec<_>>();
    (compilers, (0..batches).map(batch).filter(|batch| !batch.is_empty()).collect())
}

/// An entry to compile, and its index among the requested entries.
#[derive(Clone, Copy)]
struct Wanted {
    place: usize,
    symbol: &'static str,
}

/// The entries of a group, and its compilers' work.
struct Part<'a> {
    group: &'a Group<'a>,
    contracts: &'a [&'a Contract],
    directives: Vec<String>,
    cache: Cache<'a>,
    /// The entries to compile.
    asked: BTreeSet<&'static str>,
    compilers: usize,
    batches: Vec<Vec<Wanted>>,
    filled: Mutex<Filled>,
    /// The texts of the contracts, as far as they are made.
    done: Mutex<(Built, Vec<Option<String>>)>,
}

/// Whether the compilers' folders have the compiled dependencies.
#[derive(PartialEq)]
enum Filled {
    No,
    Yes,
    /// They do not compile. The compiler that has tried returns the error.
    Failed,
}

/// Returns the modules of the groups' contracts, from the cache or newly compiled, group by group.
///
/// One compiler per core takes batch after batch, of every group, so that no core idles at the end of a
/// group.
pub(crate) fn build(
    groups: &[(Group<'_>, Vec<&Contract>)],
    jobs: Option<usize>,
) -> Result<Vec<Built>, Error> {
    let parts: Vec<_> =
        groups.iter().map(|(group, contracts)| group.part(contracts)).collect::<Result<_, _>>()?;
    // Two compilers begin with two groups, and each compiles the dependencies of its group. The smallest
    // batches come last, so that all compilers end at about the same time.
    let numbered = parts.iter().flat_map(|part| part.batches.iter().enumerate().map(move |of| (part, of)));
    let mut queue: Vec<_> = numbered.collect();
    queue.sort_by_key(|(_, (n, batch))| (*n > 0, Reverse(batch.len())));
    let compilers =
        parts.iter().map(|part| part.compilers).sum::<usize>().min(jobs.unwrap_or_else(cores)).max(1);
    let started = SystemTime::now();
    let tokens = Tokens::ask(compilers.saturating_sub(1));
    let queue = Mutex::new(queue.into_iter());
    let work = |n: usize| -> Result<(), Error> {
        let token = if n == 0 { None } else { tokens.next() };
        if n > 0 && token.is_none() {
            return Ok(());
        }
        loop {
            let next = lock(&queue).next();
            let Some((part, (_, batch))) = next else {
                tokens.end();
                return Ok(());
            };
            if let Err(error) = part.compile(batch, n, started) {
                // The other compilers then stop after their current batch.
                lock(&queue).by_ref().for_each(drop);
                tokens.end();
                return Err(error);
            }
        }
    };
    thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> = (0..compilers).map(|n| scope.spawn(move || work(n))).collect();
        let ends: Vec<_> =
            handles.into_iter().map(|handle| handle.join().expect("compile does not panic")).collect();
        ends.into_iter().collect::<Result<(), _>>()
    })?;
    parts.into_iter().map(Part::end).collect()
}

impl Part<'_> {
    /// Compiles a batch as compiler number `n`, and caches its modules.
    fn compile(&self, batch: &[Wanted], n: usize, started: SystemTime) -> Result<(), Error> {
        let Self { group, asked, directives, .. } = self;
        if !self.fill()? {
            return Ok(());
        }
        let place = Workplace::take(&group.compilers, n % self.compilers, cores())?;
        let made = group.compile_batch(&place.folder, batch, asked, directives)?;
        let mut done = lock(&self.done);
        let (built, texts) = &mut *done;
        built.take(&made.compiled);
        built.others.extend(made.others);
        let modules = batch.iter().zip(&made.texts);
        let modules: Vec<_> = modules
            .map(|(wanted, text)| (wanted.symbol, &*directives[wanted.place], text.as_str()))
            .collect();
        let kept = Made { modules: &modules, others: &built.others, warnings: &built.warnings };
        self.cache.keep(&built.inputs, started, &kept)?;
        for (wanted, text) in batch.iter().zip(made.texts) {
            texts[wanted.place] = Some(text);
        }
        group.progress.made(batch.len());
        Ok(())
    }

    /// Compiles the dependencies, unless another compiler has done so. Returns false if that compiler has
    /// failed.
    fn fill(&self) -> Result<bool, Error> {
        let mut filled = lock(&self.filled);
        if *filled == Filled::No {
            let (group, all) = (self.group, self.asked.iter().copied().collect::<Vec<_>>());
            *filled = Filled::Failed;
            Workplace::fill(&group.compilers, self.compilers, |folder| group.invocation.check(&all, folder))?;
            *filled = Filled::Yes;
        }
        Ok(*filled == Filled::Yes)
    }

    fn end(self) -> Result<Built, Error> {
        let (built, texts) = self.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        let aligned = |(&&contract, text)| Ok((contract, stamp::align_parameter(&contract, text)?));
        let modules = self.contracts.iter().zip(texts.into_iter().flatten());
        Ok(Built { modules: modules.map(aligned).collect::<Result<_, _>>()?, ..built })
    }
}

/// The output of one compiler run.
struct Batch {
    compiled: Compiled,
    /// The PTX of each entry.
    texts: Vec<String>,
    /// The kernels of the crate that no entry names.
    others: BTreeSet<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Built {
    fn of(state: State) -> Self {
        let (others, warnings) = (state.others(), state.warnings());
        Built { others, warnings, inputs: state.inputs, modules: Vec::new() }
    }

    fn take(&mut self, compiled: &Compiled) {
        self.inputs.extend(compiled.inputs.iter().cloned());
        if self.warnings.is_empty() {
            self.warnings.clone_from(&compiled.warnings);
        }
    }
}
