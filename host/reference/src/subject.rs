//! Every kernel of the table with its test problems. The program's commands and the tests learn about
//! families only from this file.
use super::append::{AppendCase, AppendMemory, append_edges};
use super::backward::{BackwardCase, BackwardMemory, backward_edges};
use super::case::Case;
use super::cases;
use super::merge::{MergeCase, MergeMemory, merge_edges};
use super::work::Work;
use ferroflash::kernels::{AttnInfo, Contract, MaskKind};
use ferroflash::spec::{
    APPENDS, AppendInfo, Class, GRADIENTS, KERNELS, MERGES, MergeInfo, Pass, attention, beside, combine_of,
};
use ferroflash::{Capabilities, Error, ptx};
use std::iter;

/// A kernel of the table that problems can test. A combine kernel is not a subject: it runs with its split-KV
/// kernels. A prefill kernel of mixed batches is not a subject either: it runs beside its decode kernel. The
/// backward kernels run in the launches of a kernel of dK and dV.
pub trait Subject: Sync {
    /// Returns the kernel's launch contract.
    fn contract(&self) -> &Contract;

    /// Returns the name of the kernel's family.
    fn family(&self) -> &'static str;

    /// Returns the kernel's mask, or `None` if the kernel has no queries.
    fn mask(&self) -> Option<MaskKind> {
        None
    }

    /// Returns the kernel that combines this kernel's splits, or `None` if this kernel never splits.
    fn combine(&self) -> Option<Contract> {
        None
    }

    /// Returns the prefill kernel that runs in every launch of this kernel, or `None` if this kernel is not
    /// for mixed batches.
    fn beside(&self) -> Option<Contract> {
        None
    }

    /// Returns the reason why a device prefers another kernel although it could run this one, or `None` if
    /// there is no such reason.
    fn passed_over(&self, _: &Capabilities) -> Option<String> {
        None
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

    /// Returns a problem with several blocks, for repeated launches.
    fn soak(&self, seed: u64) -> Task {
        self.edges(seed).swap_remove(0)
    }
}

/// Returns all subjects of the table, ordered by family.
pub fn subjects() -> impl Iterator<Item = &'static dyn Subject> {
    let on_cache = [Class::Decode, Class::Latent, Class::Paged, Class::Few];
    let on_cache = on_cache.into_iter().flat_map(|class| attention().filter(move |e| e.class() == class));
    let attention = ferroflash::kernels::entries().chain(on_cache).map(|kernel| kernel as &dyn Subject);
    let appends = APPENDS.iter().map(|kernel| kernel as &dyn Subject);
    let merges = MERGES.iter().map(|kernel| kernel as &dyn Subject);
    let gradients = GRADIENTS.iter().filter(|kernel| kernel.pass != Pass::Dq);
    attention.chain(appends).chain(merges).chain(gradients.map(|kernel| kernel as &dyn Subject))
}

/// Returns the reason why a device cannot run a subject with this build's kernels, or `None` if the device
/// can run the subject.
pub fn unfit(subject: &dyn Subject, on: &Capabilities) -> Option<String> {
    let others = [subject.combine(), subject.beside()];
    let mut needed = iter::once(subject.contract()).chain(others.iter().flatten());
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

/// Declares the kinds of problems: a name, the problem as data, and the problem in host memory.
macro_rules! tasks {
    ($($(#[$doc:meta])* $kind:ident($case:ty) => $memory:expr,)*) => {
        /// A problem of any kind, as data.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Task {
            $($(#[$doc])* $kind($case),)*
        }

        impl Task {
            /// Creates the problem in host memory.
            pub fn work(&self) -> Box<dyn Work + Send> {
                match self {
                    $(Task::$kind(case) => Box::new($memory(case)),)*
                }
            }
        }

        impl std::fmt::Display for Task {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Task::$kind(case) => case.fmt(f),)*
                }
            }
        }
    };
}

tasks! {
    /// Attention.
    Attention(Case) => Case::memory,
    /// The gradients of an attention.
    Backward(BackwardCase) => BackwardMemory::new,
    /// An append of new keys and values.
    Append(AppendCase) => AppendMemory::new,
    /// A merge of partial states.
    Merge(MergeCase) => MergeMemory::new,
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

    fn combine(&self) -> Option<Contract> {
        combine_of(self)
    }

    fn beside(&self) -> Option<Contract> {
        beside(self)
    }

    fn passed_over(&self, on: &Capabilities) -> Option<String> {
        let solves = |kernel: &&AttnInfo| {
            (kernel.pass, kernel.dtype, kernel.mask) == (Pass::Gradients, self.dtype, self.mask)
                && kernel.head_dim >= self.head_dim
                && on.runs(&kernel.contract).is_ok()
        };
        let first = GRADIENTS.iter().filter(|_| self.pass == Pass::DkDv).find(solves)?;
        Some(format!("{} runs on {}", first.contract.symbol, on.name))
    }

    fn edges(&self, seed: u64) -> Vec<Task> {
        match self.pass {
            Pass::Forward => cases::edges(self, seed).into_iter().map(Task::Attention).collect(),
            Pass::DkDv | Pass::Dq | Pass::Gradients => {
                backward_edges(self, seed).into_iter().map(Task::Backward).collect()
            }
        }
    }

    fn grid(&self, seed: u64) -> Vec<Task> {
        match self.pass {
            Pass::Forward => cases::grid(self, seed).into_iter().map(Task::Attention).collect(),
            Pass::DkDv | Pass::Dq | Pass::Gradients => self.edges(seed),
        }
    }

    fn corrupt(&self, seed: u64) -> Vec<Task> {
        let case = (self.pass == Pass::Forward).then(|| cases::corrupt(self, seed)).flatten();
        case.map(Task::Attention).into_iter().collect()
    }

    fn soak(&self, seed: u64) -> Task {
        match self.pass {
            Pass::Forward => Task::Attention(cases::soak(self, seed)),
            // Two batches and grouped heads.
            Pass::DkDv | Pass::Dq | Pass::Gradients => self.edges(seed).swap_remove(1),
        }
    }
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
    use ferroflash::spec::{COMBINES, CONVERT_DQS, DELTAS, DSINKS};

    #[test]
    fn every_kernel_is_a_subject_or_finishes_what_one_leaves() {
        let finish = COMBINES.len() + attention().filter(|entry| entry.class() == Class::Many).count();
        let dq = GRADIENTS.iter().filter(|kernel| kernel.pass == Pass::Dq).count();
        let beside = DELTAS.len() + dq + CONVERT_DQS.len() + DSINKS.len();
        assert_eq!(subjects().count() + finish + beside, KERNELS.len());
        for subject in subjects() {
            let symbol = subject.contract().symbol;
            assert!(KERNELS.iter().any(|kernel| kernel.symbol == symbol), "{symbol}");
            assert!(!subject.edges(1).is_empty() && !subject.grid(1).is_empty(), "{symbol}");
        }
    }
}
