//! Every kernel of the table with its test problems. The program's commands and the tests learn about
//! families only from this file.
use super::append::{AppendCase, AppendMemory, append_edges};
use super::backward::BackwardMemory;
use super::case::Case;
use super::cases;
use super::merge::{MergeCase, MergeMemory, merge_edges};
use super::work::{Binder, LaunchOptions, Work};
use ferroflash::kernels::{AttnInfo, Contract, MaskKind};
use ferroflash::plan::{explain, plan};
use ferroflash::request::{Precision, Scratch};
use ferroflash::spec::{
    APPENDS, AppendInfo, CONVERT_DQS, Class, DELTAS, DSINKS, EXTRAS, Entry, ExtraInfo, GRADIENTS, KERNELS,
    LayFp8, LayFp8Pages, LayInt8Pages, MERGES, MergeInfo, NumberTiles, Pass, Queries, STATISTICS, SUM_HEADS,
    UsedQueries, attention, beside, combine_of, lay_of, quantise_of,
};
use ferroflash::{Capabilities, DType, Error, ptx};
use std::iter;

/// A kernel of the table that problems can test. The other kernels of the table are
/// [companions](Subject::companions) of subjects.
pub trait Subject: Sync {
    /// Returns the kernel's launch contract.
    fn contract(&self) -> &Contract;

    /// Returns the name of the kernel's family.
    fn family(&self) -> &'static str;

    /// Returns the kernel's mask, or `None` if the kernel has no queries.
    fn mask(&self) -> Option<MaskKind> {
        None
    }

    /// Returns the other kernels in this kernel's launches: the kernel that combines its splits, the prefill
    /// kernel of a mixed batch, the other passes of a backward.
    fn companions(&self) -> Vec<Contract> {
        vec![]
    }

    /// Returns the reason why a device prefers another kernel although it could run this one, or `None` if
    /// there is no such reason.
    fn passed_over(&self, _: &Capabilities) -> Option<String> {
        None
    }

    /// Returns whether a device that runs this kernel solves this problem of the kernel with it.
    fn takes(&self, _: &Task, _: &Capabilities) -> bool {
        true
    }

    /// Returns problems that hit the kernel's edges, small enough for the simulator.
    fn edges(&self, seed: u64) -> Vec<Task>;

    /// Returns the problems of [`Subject::edges`] and larger problems, for a GPU.
    fn grid(&self, seed: u64) -> Vec<Task> {
        self.edges(seed)
    }

    /// Returns problems with invalid integers, which make several blocks write the same rows. The simulator
    /// reports a race. On a GPU, only the written numbers are wrong.
    fn corrupt(&self, _: u64) -> Vec<Task> {
        vec![]
    }

    /// Returns a problem with several blocks, for repeated launches. Every device takes it.
    fn soak(&self, seed: u64) -> Task {
        self.edges(seed).swap_remove(0)
    }
}

/// Returns all subjects of the table, ordered by family.
pub fn subjects() -> impl Iterator<Item = &'static dyn Subject> {
    let classes = [Class::Decode, Class::Latent, Class::Listed, Class::Paged, Class::Few, Class::Quantised];
    let more = classes.into_iter().flat_map(|class| attention().filter(move |e| e.class() == class));
    let attention =
        ferroflash::kernels::entries().chain(more).chain(STATISTICS).map(|kernel| kernel as &dyn Subject);
    let appends = APPENDS.iter().map(|kernel| kernel as &dyn Subject);
    let merges = MERGES.iter().map(|kernel| kernel as &dyn Subject);
    let merges = merges.chain(EXTRAS.iter().map(|kernel| kernel as &dyn Subject));
    let gradients = GRADIENTS.iter().filter(|kernel| !kernel.pass.is_beside());
    attention.chain(appends).chain(merges).chain(gradients.map(|kernel| kernel as &dyn Subject))
}

/// Returns the subject of this name, or all subjects whose launches have the kernel of this name.
pub fn subjects_with(symbol: &str) -> Vec<&'static dyn Subject> {
    let own = subjects().find(|subject| subject.contract().symbol == symbol);
    let has = |subject: &&dyn Subject| subject.companions().iter().any(|kernel| kernel.symbol == symbol);
    own.map_or_else(|| subjects().filter(has).collect(), |own| vec![own])
}

/// Returns the reason why a device cannot run a subject with this build's kernels, or `None` if the device
/// can run the subject.
pub fn unfit(subject: &dyn Subject, on: &Capabilities) -> Option<String> {
    let others = subject.companions();
    let mut needed = iter::once(subject.contract()).chain(&others);
    if let Some(Contract { symbol, .. }) = needed.find(|contract| !is_carried(contract.symbol)) {
        let carried = KERNELS.iter().filter(|kernel| is_carried(kernel.symbol)).count();
        return Some(format!("this build carries {carried} of {} kernels, and not {symbol}", KERNELS.len()));
    }
    match on.runs(subject.contract()) {
        Ok(()) => subject.passed_over(on),
        Err(Error::Unsupported { reason, .. }) => Some(reason),
        Err(other) => Some(other.to_string()),
    }
}

/// Returns whether this process can load a kernel. A build may carry only some of the table's kernels.
pub fn is_carried(symbol: &str) -> bool {
    ptx::is_embedded(symbol) || ptx::replacement(symbol).is_some()
}

/// Returns whether this process can load every kernel of the table.
pub fn carries_all() -> bool {
    KERNELS.iter().all(|kernel| is_carried(kernel.symbol))
}

/// Returns whether a launch was refused because this build does not carry the kernel that the planner
/// selected.
pub fn lacks_kernel(error: &Error) -> bool {
    let is_of_table = |symbol: &str| KERNELS.iter().any(|kernel| kernel.symbol == symbol);
    matches!(error, Error::Unsupported { feature, .. } if is_of_table(feature) && !is_carried(feature))
}

/// A problem of any kind, as data.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly all problems are of the largest kind")]
pub enum Task {
    /// Attention, or its backward pass.
    Attention(Case),
    /// An append of new keys and values.
    Append(AppendCase),
    /// A merge of partial states.
    Merge(MergeCase),
}

impl Task {
    /// Creates the problem in host memory.
    pub fn work(&self) -> Box<dyn Work + Send> {
        match self {
            Task::Attention(case) if case.backward.is_some() => Box::new(BackwardMemory::new(case)),
            Task::Attention(case) => Box::new(case.memory()),
            Task::Append(case) => Box::new(AppendMemory::new(case)),
            Task::Merge(case) => Box::new(MergeMemory::new(case)),
        }
    }
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Task::Attention(case) => case.fmt(f),
            Task::Append(case) => case.fmt(f),
            Task::Merge(case) => case.fmt(f),
        }
    }
}

impl Subject for AttnInfo {
    fn contract(&self) -> &Contract {
        &self.contract
    }

    fn family(&self) -> &'static str {
        self.family()
    }

    fn mask(&self) -> Option<MaskKind> {
        Some(self.mask)
    }

    fn companions(&self) -> Vec<Contract> {
        let delta = DELTAS.iter().find(|e| e.dtype == self.dtype && e.head_dim >= self.head_dim_v);
        let kind = |e: &AttnInfo| (e.dtype, e.columns(), e.mask, e.scores);
        let others = || GRADIENTS.iter().filter(|e| e.pass.is_beside() && kind(e) == kind(self));
        let others: Vec<_> = match self.pass {
            Pass::Forward => {
                let prepare = quantise_of(self).into_iter().chain(lay_of(self));
                let numbers = (self.queries == Queries::Mixed).then_some(<NumberTiles as Entry>::CONTRACT);
                let prepare = prepare.chain(numbers);
                return combine_of(self).into_iter().chain(beside(self)).chain(prepare).collect();
            }
            Pass::Statistics => return vec![],
            Pass::Gradients => {
                CONVERT_DQS.iter().find(|e| e.rounds(self)).map(|e| e.contract).into_iter().collect()
            }
            _ => others().map(|e| e.contract).collect(),
        };
        let delta = delta.map(|e| e.contract).into_iter();
        let sums =
            SUM_HEADS.iter().filter(|e| e.dtype == self.dtype && !self.is_varlen()).map(|e| e.contract);
        delta.chain(others).chain(DSINKS.iter().map(|e| e.contract)).chain(sums).collect()
    }

    /// Hopper's kernels may run all problems of a portable kernel of dK and dV. A precision may be refused on
    /// a GPU that could run its kernels.
    fn passed_over(&self, on: &Capabilities) -> Option<String> {
        if self.precision() != Precision::Inputs {
            return lacks_precision(self.edges(1).first()?, on);
        }
        let takes_none = || !self.edges(1).iter().any(|task| self.takes(task, on));
        (self.pass == Pass::DkDv && takes_none()).then(|| format!("Hopper's kernels run on {}", on.name))
    }

    /// Problems of a portable kernel of dK and dV run Hopper's kernels where there are any. Of these, plain
    /// windows run the kernel without softcap and slopes. Statistics follow the planner's kernels of the
    /// attention, which a build may lack.
    fn takes(&self, task: &Task, on: &Capabilities) -> bool {
        if self.pass == Pass::Statistics {
            return is_planned_of_carried(task, Some(self.contract.symbol), on);
        }
        let Task::Attention(case @ Case { backward: Some(_), .. }) = task else {
            return lacks_precision(task, on).is_none();
        };
        let kind = |e: &AttnInfo| (e.dtype, e.mask, e.scores);
        let solves = |e: &AttnInfo| {
            (e.pass, kind(e)) == (Pass::Gradients, kind(self))
                && e.is_varlen() == case.varlen_queries.is_some()
                && e.takes_columns(case.problem().columns())
        };
        let is_plain = case.softcap.is_none() && !case.alibi;
        let is_faster = |e: &AttnInfo| match self.pass {
            Pass::Gradients => {
                is_plain && e.is_unmodified() && !self.is_unmodified() && e.columns() == self.columns()
            }
            _ => true,
        };
        !GRADIENTS.iter().any(|e| solves(e) && is_faster(e) && on.runs(&e.contract).is_ok())
    }

    fn edges(&self, seed: u64) -> Vec<Task> {
        cases::edges(self, seed).into_iter().map(Task::Attention).collect()
    }

    fn grid(&self, seed: u64) -> Vec<Task> {
        cases::grid(self, seed).into_iter().map(Task::Attention).collect()
    }

    fn corrupt(&self, seed: u64) -> Vec<Task> {
        cases::corrupt(self, seed).map(Task::Attention).into_iter().collect()
    }

    fn soak(&self, seed: u64) -> Task {
        Task::Attention(cases::soak(self, seed))
    }
}

impl Subject for ExtraInfo {
    fn contract(&self) -> &Contract {
        &self.contract
    }

    fn family(&self) -> &'static str {
        "extra"
    }

    fn passed_over(&self, on: &Capabilities) -> Option<String> {
        lacks_precision(self.edges(1).first()?, on)
    }

    /// A build may lack the planner's kernels of the attention.
    fn takes(&self, task: &Task, on: &Capabilities) -> bool {
        lacks_precision(task, on).is_none() && is_planned_of_carried(task, None, on)
    }

    fn edges(&self, seed: u64) -> Vec<Task> {
        let pages = |dtype, columns| cases::laid_pages(dtype, columns, seed);
        let cases = match &self.contract {
            own if *own == <UsedQueries as Entry>::CONTRACT => cases::padded_queries(seed),
            own if *own == <NumberTiles as Entry>::CONTRACT => cases::numbered_tiles(seed),
            own if *own == <LayFp8<8, 4> as Entry>::CONTRACT => cases::e4m3_tensors(64, seed),
            own if *own == <LayFp8<8, 8> as Entry>::CONTRACT => cases::e4m3_tensors(128, seed),
            own if *own == <LayFp8<4, 16> as Entry>::CONTRACT => cases::e4m3_tensors(256, seed),
            own if *own == <LayFp8Pages<8, 4> as Entry>::CONTRACT => pages(DType::E4m3, 64),
            own if *own == <LayFp8Pages<8, 8> as Entry>::CONTRACT => pages(DType::E4m3, 128),
            own if *own == <LayFp8Pages<4, 16> as Entry>::CONTRACT => pages(DType::E4m3, 256),
            own if *own == <LayInt8Pages<4, 4> as Entry>::CONTRACT => pages(DType::Int8, 64),
            own if *own == <LayInt8Pages<4, 8> as Entry>::CONTRACT => pages(DType::Int8, 128),
            _ => cases::head_maxima(seed),
        };
        cases.into_iter().map(Task::Attention).collect()
    }
}

/// Returns the refusal of a problem's precision, which only some devices that could run its kernels have.
fn lacks_precision(task: &Task, on: &Capabilities) -> Option<String> {
    let Task::Attention(case) = task else { return None };
    let problem = case.problem();
    let refusal = || explain(&problem, on, Scratch::Fastest).err();
    (problem.precision != Precision::Inputs).then(refusal)?.map(|refusal| refusal.to_string())
}

/// Returns whether the process carries all kernels of a problem's plan, or there is none.
fn is_planned_of_carried(task: &Task, config: Option<&str>, on: &Capabilities) -> bool {
    let work = task.work();
    let plan = plan(
        &work.request(&mut Binder::at(None, None), LaunchOptions { config, ..LaunchOptions::default() }),
        on,
    );
    plan.map_or(true, |plan| plan.kernels().all(|kernel| is_carried(kernel.symbol)))
}

impl Subject for AppendInfo {
    fn contract(&self) -> &Contract {
        &self.contract
    }

    fn family(&self) -> &'static str {
        "append"
    }

    fn passed_over(&self, on: &Capabilities) -> Option<String> {
        let alike = |kernel: &&AppendInfo| kernel.rounds == self.rounds && kernel.rotates == self.rotates;
        let first = APPENDS.iter().filter(alike).find(|kernel| on.runs(&kernel.contract).is_ok());
        let first = first.filter(|kernel| *kernel != self)?;
        Some(format!("{} runs on {}", first.contract.symbol, on.name))
    }

    fn edges(&self, seed: u64) -> Vec<Task> {
        append_edges(self, seed).into_iter().map(Task::Append).collect()
    }
}

impl Subject for MergeInfo {
    fn contract(&self) -> &Contract {
        &self.contract
    }

    fn family(&self) -> &'static str {
        "merge"
    }

    fn edges(&self, seed: u64) -> Vec<Task> {
        merge_edges(self, seed).into_iter().map(Task::Merge).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Layout;
    use std::collections::BTreeSet;

    #[test]
    fn every_kernel_is_a_subject_or_its_companion() {
        let companions: Vec<_> = subjects().flat_map(Subject::companions).map(|e| e.symbol).collect();
        for Contract { symbol, .. } in KERNELS {
            let subjects = subjects_with(symbol);
            assert!(!subjects.is_empty(), "no subject launches {symbol}");
            let is_companion = companions.contains(symbol);
            let own = subjects.iter().any(|subject| subject.contract().symbol == *symbol);
            // An extra kernel is a subject, and a companion where an attention kernel cannot run without it.
            let is_extra = EXTRAS.iter().any(|e| e.contract.symbol == *symbol);
            assert!(own && is_extra || own != is_companion, "{symbol}");
        }
        for subject in subjects() {
            let symbol = subject.contract().symbol;
            assert!(KERNELS.iter().any(|kernel| kernel.symbol == symbol), "{symbol}");
            assert!(!subject.edges(1).is_empty() && !subject.grid(1).is_empty(), "{symbol}");
        }
    }

    /// Returns the kernels of a backward problem on a device, in launch order.
    fn kernels_of(case: &Case, on: &Capabilities) -> Vec<&'static str> {
        let work = BackwardMemory::to_measure(case.memory(), Layout::Bshd);
        let plan = plan(&work.request(&mut Binder::at(None, None), LaunchOptions::default()), on);
        let plan = plan.unwrap_or_else(|error| panic!("{case}: {error}"));
        plan.kernels().map(|kernel| kernel.symbol).collect()
    }

    /// The problems of a backward kernel launch it on every device that takes them, all of its companions on
    /// some device, and no other kernel.
    #[test]
    fn backward_problems_launch_their_kernel_and_its_companions() {
        for kernel in GRADIENTS.iter().filter(|e| !e.pass.is_beside()) {
            let named = [kernel.contract].into_iter().chain(kernel.companions());
            let named: BTreeSet<_> = named.map(|e| e.symbol).collect();
            let cards = ["l4", "h200"].map(|name| Capabilities::profile(name).expect("a known card"));
            let (symbol, mut all) = (kernel.contract.symbol, BTreeSet::new());
            let runs = |card: &&Capabilities| card.runs(&kernel.contract).is_ok();
            for card in cards.into_iter().filter(runs).filter(|card| kernel.passed_over(card).is_none()) {
                let launched = kernel.edges(1).into_iter().filter(|task| kernel.takes(task, card));
                let launched = launched.map(|task| {
                    let Task::Attention(case) = task else { panic!("{task}: no attention") };
                    let kernels = kernels_of(&case, card);
                    assert!(kernels.contains(&symbol), "{case} on {}: {kernels:?}", card.name);
                    kernels
                });
                all.extend(launched.flatten());
                assert!(kernel.takes(&kernel.soak(1), card), "{symbol} on {}", card.name);
            }
            assert_eq!(all, named, "{symbol}");
        }
    }
}
