//! Source lines of an instruction.

use std::{cmp::Reverse, collections::HashMap};

use crate::{
    ast::{Function, Location, Module},
    dwarf::Scope,
    report::SourceLine,
};

/// Files of the standard library: frames there only say how an iterator works.
const LIBRARY: &str = "/library/core/";

/// The scopes of one function, made at its first report.
#[derive(Clone, Debug)]
pub(crate) struct Inlining {
    /// First and last instruction and index of each scope, the shortest first.
    scopes: Vec<(u32, u32, usize)>,
    /// The file that each inlined function's lines come from mostly.
    home: HashMap<Box<str>, u32>,
}

impl Inlining {
    fn of(module: &Module, function: &Function) -> Inlining {
        let depth = |index: usize| std::iter::successors(Some(index), |&at| module.scopes[at].parent).count();
        let range = |scope: &Scope| Some((*function.labels.get(&scope.low)?, *function.labels.get(&scope.high)?));
        let ranges = module.scopes.iter().enumerate();
        let mut scopes: Vec<_> =
            ranges.filter_map(|(index, scope)| range(scope).map(|(low, high)| (low, high, index))).collect();
        scopes.sort_by_key(|&(low, high, index)| (high.saturating_sub(low), Reverse(depth(index))));
        // Longest first, so that the tightest scope of each instruction is painted last.
        let mut tightest = vec![usize::MAX; function.instructions.len()];
        for &(low, high, index) in scopes.iter().rev() {
            let high = (high as usize).min(tightest.len());
            tightest[(low as usize).min(high)..high].fill(index);
        }
        let mut votes: HashMap<&str, HashMap<u32, usize>> = HashMap::new();
        for (instruction, &index) in function.instructions.iter().zip(&tightest) {
            if let (Some(scope), Some(location)) =
                (module.scopes.get(index), module.locations.get(instruction.location as usize))
            {
                *votes.entry(&scope.name).or_default().entry(location.file).or_default() += 1;
            }
        }
        let most = |votes: HashMap<u32, usize>| {
            votes.into_iter().max_by_key(|&(file, count)| (count, Reverse(file))).map_or(0, |(file, _)| file)
        };
        Inlining { scopes, home: votes.into_iter().map(|(name, votes)| (name.into(), most(votes))).collect() }
    }

    /// The tightest scope around instruction `at` whose function lives in `file`. Ranges of interleaved calls overlap (the format has no
    /// holes), so this is a good guess only.
    fn innermost<'m>(&self, module: &'m Module, at: u32, file: u32) -> Option<&'m Scope> {
        let around = || {
            self.scopes
                .iter()
                .filter(|(low, high, _)| *low <= at && at < *high)
                .map(|&(_, _, index)| &module.scopes[index])
        };
        around().find(|scope| self.home.get(&scope.name) == Some(&file)).or_else(|| around().next())
    }
}

/// The lines of instruction `at`, innermost first: its `.loc`, then the calls that inlining has dissolved. Without debug sections the
/// nearest line before it in another file stands for the call: for a wrapper of one instruction that is usually where it was called.
pub(crate) fn source(module: &Module, function: &Function, at: usize) -> Vec<SourceLine> {
    let file = |index: u32| module.files.get(&index).map_or("?", |file| file);
    let location = |at: usize| {
        let index = function.instructions.get(at)?.location as usize;
        module.locations.get(index).copied().filter(|location| location.line != 0)
    };
    let Some(own) = location(at) else { return Vec::new() };
    let mut lines = vec![SourceLine::new(file(own.file), own.line, own.column)];
    let inlining = module.inlining.get(function.index).map(|once| once.get_or_init(|| Inlining::of(module, function)));
    let mut scope = inlining.and_then(|inlining| inlining.innermost(module, at as u32, own.file));
    if scope.is_some() {
        while let Some(inlined) = scope {
            if let Some(line) = lines.last_mut() {
                // Without the generic arguments, which fill a screen.
                line.function = inlined.name.split('<').next().map(Into::into);
            }
            let (call_file, line, column) = inlined.call;
            if line != 0 {
                lines.push(SourceLine::new(file(call_file), line, column));
            }
            scope = inlined.parent.map(|parent| &module.scopes[parent]);
        }
        if lines.iter().any(|line| !line.file.contains(LIBRARY)) {
            lines.retain(|line| !line.file.contains(LIBRARY));
        }
        lines.dedup_by(|outer, inner| {
            (&outer.file, outer.line, outer.column) == (&inner.file, inner.line, inner.column)
        });
        return lines;
    }
    let is_source = |location: &Location| !file(location.file).contains(LIBRARY);
    let caller = (0..at).rev().take(400).filter_map(location).find(|other| other.file != own.file && is_source(other));
    lines.extend(caller.map(|location| SourceLine::new(file(location.file), location.line, location.column)));
    lines
}
