//! The entries that are compiled for one target: those that are not kept, on all cores.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::SystemTime;

use crate::cache::{Cache, Made, State};
use crate::cargo::{Compiled, Invocation};
use crate::module::Ptx;
use crate::{Contract, Error, stamp};

/// So many entries take as long as `core`, which every compiler compiles for itself.
const WORTH_A_COMPILER: usize = 4;

/// One target's share of a build.
pub(crate) struct Group<'a> {
    pub invocation: Invocation<'a>,
    /// Symbols of all of the crate's contracts. A kernel that none names is an error, so that modules kept
    /// under others say nothing.
    pub contracted: &'a [&'static str],
    /// Where its compilers work and its modules are kept.
    pub folder: &'a Path,
    /// Compilers to run side by side, if not one for each core.
    pub jobs: Option<usize>,
}

/// What became of a group.
#[derive(Default)]
pub(crate) struct Built {
    /// In the order of the contracts.
    pub modules: Vec<(Contract, String)>,
    /// Kernels of the crate that nobody asked for.
    pub others: BTreeSet<String>,
    pub inputs: BTreeSet<PathBuf>,
    pub warnings: String,
}

impl Group<'_> {
    fn cache(&self) -> Cache<'_> {
        let recipe = (self.invocation.recipe(), self.contracted);
        Cache::open(&self.folder.join("cache"), self.invocation.workspace, recipe)
    }

    /// Whether [`build`](Self::build) would compile nothing.
    pub(crate) fn is_kept(&self, contracts: &[&Contract]) -> Result<bool, Error> {
        let Some(kept) = self.cache().current() else { return Ok(false) };
        for contract in contracts {
            if kept.module(contract.symbol, &stamp::directives(contract)?).is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The modules of `contracts`: kept ones, or else compiled.
    pub(crate) fn build(&self, contracts: &[&Contract]) -> Result<Built, Error> {
        let directives: Vec<_> = contracts.iter().map(|c| stamp::directives(c)).collect::<Result<_, _>>()?;
        let cache = self.cache();
        let kept = cache.current();
        let find = |(contract, directives): (&&Contract, &String)| {
            kept.as_ref().and_then(|state| state.module(contract.symbol, directives))
        };
        let mut texts: Vec<_> = contracts.iter().zip(&directives).map(find).collect();
        let missing: Vec<usize> = (0..texts.len()).filter(|&n| texts[n].is_none()).collect();
        let mut built = match kept {
            Some(state) if missing.is_empty() => Built::of(state),
            _ => Built::default(),
        };
        if !missing.is_empty() {
            let started = SystemTime::now();
            let symbols: Vec<_> = missing.iter().map(|&n| contracts[n].symbol).collect();
            let shards = self.shards(&symbols);
            let compiled = self.compile(&shards)?;
            let parsed: Vec<_> = compiled.iter().map(|c| Ptx::parse(&c.ptx)).collect::<Result<_, _>>()?;
            let mut made = Vec::new();
            for &n in &missing {
                let symbol = contracts[n].symbol;
                // The shard that was asked for the entry: a crate that ignores the selection has it in the
                // others too.
                let own = shards.iter().position(|shard| shard.contains(&symbol)).unwrap_or(0);
                let text = parsed[own].module(symbol, &directives[n]);
                let text = text.ok_or_else(|| Error::MissingEntry { symbol: symbol.to_owned() })?;
                made.push((symbol, directives[n].as_str(), text));
            }
            let asked = |symbol: &&str| symbols.contains(symbol);
            let others = parsed.iter().flat_map(Ptx::entries).filter(|symbol| !asked(symbol));
            built.others = others.map(str::to_owned).collect();
            built.take(&compiled);
            let kept = Made { modules: &made, others: &built.others, warnings: &built.warnings };
            cache.keep(&built.inputs, started, &kept)?;
            for (n, (.., text)) in missing.into_iter().zip(made) {
                texts[n] = Some(text);
            }
        }
        let aligned = |(&&contract, text)| Ok((contract, stamp::align_parameter(&contract, text)?));
        built.modules =
            contracts.iter().zip(texts.into_iter().flatten()).map(aligned).collect::<Result<_, _>>()?;
        Ok(built)
    }

    /// A module of every kernel that the crate has, none of them stamped.
    pub(crate) fn build_all(&self) -> Result<Built, Error> {
        let compiled = self.compile(&[Vec::new()])?;
        let mut built = Built::default();
        for compiled in &compiled {
            let ptx = Ptx::parse(&compiled.ptx)?;
            // Nobody has named these symbols: they live as long as the program.
            let contracts = ptx.entries().map(|symbol| Contract::new(symbol.to_owned().leak(), 0));
            built.modules.extend(contracts.filter_map(|c| Some((c, ptx.module(c.symbol, "")?))));
        }
        built.take(&compiled);
        Ok(built)
    }

    /// Runs one compiler for each shard.
    fn compile(&self, shards: &[Vec<&str>]) -> Result<Vec<Compiled>, Error> {
        thread::scope(|scope| {
            let start = |n: usize| {
                let target_dir = self.folder.join(format!("shard-{n}"));
                let symbols = &shards[n];
                scope.spawn(move || self.invocation.compile(symbols, &target_dir))
            };
            let handles: Vec<_> = (0..shards.len()).map(start).collect();
            handles.into_iter().map(|h| h.join().expect("compile does not panic")).collect()
        })
    }

    /// Deals the symbols out to the compilers: round the table, because neighbours cost alike.
    fn shards<'c>(&self, symbols: &[&'c str]) -> Vec<Vec<&'c str>> {
        let cores = || thread::available_parallelism().map_or(1, |n| n.get());
        let most = symbols.len().div_ceil(WORTH_A_COMPILER).max(1);
        let count = self.jobs.unwrap_or_else(cores).clamp(1, most);
        (0..count).map(|n| symbols.iter().skip(n).step_by(count).copied().collect()).collect()
    }
}

impl Built {
    fn of(state: State) -> Self {
        let (others, warnings) = (state.others(), state.warnings());
        Built { others, warnings, inputs: state.inputs, modules: Vec::new() }
    }

    fn take(&mut self, compiled: &[Compiled]) {
        self.inputs.extend(compiled.iter().flat_map(|c| c.inputs.iter().cloned()));
        let warnings = compiled.iter().map(|c| &c.warnings).find(|warnings| !warnings.is_empty());
        self.warnings = warnings.cloned().unwrap_or_default();
    }
}
