//! Compiles the entries for one target that are not in the cache, on all cores.

use std::collections::BTreeSet;
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
    pub folder: &'a Path,
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

    /// The number of `contracts` that [`build`](Self::build) would compile.
    pub(crate) fn missing(&self, contracts: &[&Contract]) -> Result<usize, Error> {
        let Some(kept) = self.cache().current() else { return Ok(contracts.len()) };
        let is_kept = |contract: &&&Contract| {
            stamp::directives(contract).map(|directives| kept.module(contract.symbol, &directives).is_some())
        };
        contracts.iter().map(|contract| is_kept(&contract).map(|kept| usize::from(!kept))).sum()
    }

    /// Returns the modules of `contracts`, from the cache or newly compiled.
    pub(crate) fn build(&self, contracts: &[&Contract]) -> Result<Built, Error> {
        let directives: Vec<_> = contracts.iter().map(|c| stamp::directives(c)).collect::<Result<_, _>>()?;
        let cache = self.cache();
        let kept = cache.current();
        let find = |(contract, directives): (&&Contract, &String)| {
            kept.as_ref().and_then(|state| state.module(contract.symbol, directives))
        };
        let mut texts: Vec<_> = contracts.iter().zip(&directives).map(find).collect();
        let missing: Vec<Wanted<'_>> = (0..texts.len())
            .filter(|&n| texts[n].is_none())
            .map(|n| Wanted { place: n, symbol: contracts[n].symbol, directives: &directives[n] })
            .collect();
        let mut built = match kept {
            Some(state) if missing.is_empty() => Built::of(state),
            _ => Built::default(),
        };
        for (place, text) in self.compile_missing(&cache, &missing, &mut built)? {
            texts[place] = Some(text);
        }
        let aligned = |(&&contract, text)| Ok((contract, stamp::align_parameter(&contract, text)?));
        built.modules =
            contracts.iter().zip(texts.into_iter().flatten()).map(aligned).collect::<Result<_, _>>()?;
        Ok(built)
    }

    /// Compiles entries in batches, one compiler per core, and caches the modules of every batch.
    fn compile_missing(
        &self,
        cache: &Cache<'_>,
        missing: &[Wanted<'_>],
        built: &mut Built,
    ) -> Result<Vec<(usize, String)>, Error> {
        let started = SystemTime::now();
        let asked: BTreeSet<_> = missing.iter().map(|wanted| wanted.symbol).collect();
        let (compilers, batches) = self.deal(missing);
        let all: Vec<_> = asked.iter().copied().collect();
        Workplace::fill(&self.compilers, compilers, |folder| self.invocation.check(&all, folder))?;
        let queue = Mutex::new(batches.into_iter());
        let done = Mutex::new((built, Vec::new()));
        let tokens = Tokens::ask(compilers.saturating_sub(1));
        let work = |n: usize| -> Result<(), Error> {
            let token = if n == 0 { None } else { tokens.next() };
            if n > 0 && token.is_none() {
                return Ok(());
            }
            let place = Workplace::take(&self.compilers, n, cores())?;
            loop {
                let batch = lock(&queue).next();
                let Some(batch) = batch else {
                    tokens.end();
                    return Ok(());
                };
                let made = self.compile_batch(&place.folder, &batch, &asked);
                if made.is_err() {
                    // The other compilers then stop after their current batch.
                    lock(&queue).by_ref().for_each(drop);
                    tokens.end();
                }
                let made = made?;
                let mut done = lock(&done);
                let (built, texts) = &mut *done;
                built.take(&made.compiled);
                built.others.extend(made.others.iter().cloned());
                let modules: Vec<_> = batch
                    .iter()
                    .zip(&made.texts)
                    .map(|(wanted, text)| (wanted.symbol, wanted.directives, text.as_str()))
                    .collect();
                let kept = Made { modules: &modules, others: &built.others, warnings: &built.warnings };
                cache.keep(&built.inputs, started, &kept)?;
                texts.extend(batch.iter().map(|wanted| wanted.place).zip(made.texts));
                self.progress.made(batch.len());
            }
        };
        thread::scope(|scope| {
            let work = &work;
            let handles: Vec<_> = (0..compilers).map(|n| scope.spawn(move || work(n))).collect();
            let ends: Vec<_> =
                handles.into_iter().map(|handle| handle.join().expect("compile does not panic")).collect();
            ends.into_iter().collect::<Result<(), _>>()
        })?;
        Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner).1)
    }

    /// Runs one compiler for the entries of `batch`. `asked` contains the entries of all batches.
    fn compile_batch(
        &self,
        folder: &Path,
        batch: &[Wanted<'_>],
        asked: &BTreeSet<&str>,
    ) -> Result<Batch, Error> {
        let symbols: Vec<_> = batch.iter().map(|wanted| wanted.symbol).collect();
        let compiled = self.invocation.compile(&symbols, folder)?;
        let parsed = Ptx::parse(&compiled.ptx)?;
        let module = |wanted: &Wanted<'_>| {
            let text = parsed.module(wanted.symbol, wanted.directives);
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

    /// The number of compilers, and the batches of entries. Neighbours in the table take about the same time,
    /// so they go to different batches.
    fn deal<'w>(&self, wanted: &[Wanted<'w>]) -> (usize, Vec<Vec<Wanted<'w>>>) {
        let most = wanted.len().div_ceil(WORTH_A_COMPILER);
        let compilers = self.jobs.unwrap_or_else(cores).clamp(1, most.max(1)).min(wanted.len());
        if compilers == 0 {
            return (0, Vec::new());
        }
        let batches = wanted.len().div_ceil(BATCH).next_multiple_of(compilers);
        let batch = |n: usize| wanted.iter().skip(n).step_by(batches).copied().collect::<Vec<_>>();
        (compilers, (0..batches).map(batch).filter(|batch| !batch.is_empty()).collect())
    }
}

/// An entry to compile, and its index among the requested entries.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    place: usize,
    symbol: &'static str,
    directives: &'a str,
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
