//! Checks a file's lengths, pages and scales. Kernels cannot check them, because they are in device memory.
use super::Input;
use crate::error::Error;
use crate::files::File;
use crate::run::extras;
use ferroflash::DType;
use ferroflash::plan::MAX_ROWS;

impl Input {
    /// Checks the integers that kernels would clamp.
    pub(super) fn is_there(&self, file: &File<'_>) -> Result<(), Error> {
        let [pages, page, ..] = self.pages.shape;
        for (b, length) in self.lengths.iter().enumerate() {
            let capacity = self.problem.seqlen_k;
            let Some(keys) = usize::try_from(*length).ok().filter(|keys| *keys <= capacity) else {
                let what = format_args!("`seqused_k[{b}]` is {length}");
                return Err(file.invalid(format_args!(
                    "{what}; it must be 0 to {capacity}, the keys of its {} pages of {page} (--layout says \
                     which size of `k_cache` {:?} is the page size)",
                    self.table.as_ref().map_or(1, |(_, columns)| *columns),
                    self.pages.shape
                )));
            };
            let is_there = |number: i32| usize::try_from(number).is_ok_and(|number| number < pages);
            let mut columns = 0..keys.div_ceil(page);
            if let Some(i) = columns.find(|i| !is_there(self.page(b, *i))) {
                let what = format_args!("`block_table[{b}, {i}]` is {}", self.page(b, i));
                return Err(
                    file.invalid(format_args!("{what}; it must be 0 to {}, a page of `k_cache`", pages - 1))
                );
            }
        }
        Ok(())
    }

    /// Returns the name and the value of the first scale of an int8 cache that is `wrong`, among the keys of
    /// the sequences that count: `counts` gets a scale's name, a sequence and a key.
    fn scale_that_is(
        &self,
        wrong: impl Fn(f32) -> bool,
        counts: impl Fn(&str, usize, usize) -> bool,
    ) -> Option<(String, f32)> {
        let [_, page, heads, _] = self.pages.shape;
        let scales = ["k_scale", "v_scale"].into_iter().zip(&self.scales);
        let all = scales.filter_map(|(name, all)| Some((name, all.as_ref()?)));
        let mut all = all.filter(|_| self.pages.dtype == DType::Int8);
        all.find_map(|(name, all)| {
            let sequences = self.lengths.iter().enumerate();
            let mut rows = sequences.flat_map(|(b, length)| (0..*length as usize).map(move |key| (b, key)));
            rows.find_map(|(b, key)| {
                let [number, within] = [self.page(b, key / page) as usize, key % page];
                let head = |head: usize| all[(number * page + within) * heads + head];
                let found = (0..heads).find(|i| wrong(head(*i)) && counts(name, b, key))?;
                Some((format!("`{name}[{number}, {within}, {found}]`"), head(found)))
            })
        })
    }

    /// Checks that no scale of an int8 cache is negative, because kernels take the largest scale, and the
    /// factors of scores on an e4m3 cache.
    pub(super) fn has_scales(&self, file: &File<'_>) -> Result<(), Error> {
        if self.pages.dtype == DType::E4m3 {
            let scales = self.scales[0].iter().flatten();
            let factors = scales.map(|scale| self.problem.softmax_scale() * scale);
            return extras::at_most(file, "--scale x `k_scale`", factors);
        }
        self.scale_that_is(|scale| scale < 0.0, |_, _, _| true).map_or(Ok(()), |(name, scale)| {
            Err(file.invalid(format_args!("{name} is {scale:e}; it must be 0 or more")))
        })
    }

    /// Checks that results can be judged: no scale of an int8 cache is NaN or infinite, if a query sees its
    /// key. A prefill kernel multiplies the values of hidden keys by probabilities of 0, so their scales
    /// count, too.
    pub(in crate::run) fn can_be_judged(&self) -> Result<(), Error> {
        let prefills = self.problem.varlen.is_some() || self.problem.rows() > MAX_ROWS;
        let counts = |name: &str, b, key| prefills && name == "v_scale" || !self.hides(b, key);
        self.scale_that_is(|scale| !scale.is_finite(), counts).map_or(Ok(()), |(name, scale)| {
            let what = format_args!("{name} is {scale}, so that no result has a bound");
            Err(Error::Invalid(format!("--check: {what}; make it a finite number, or leave --check out")))
        })
    }

    /// Checks that the sequences of each group share their first pages, and that every query sees their keys.
    pub(super) fn has_shared_pages(&self, file: &File<'_>) -> Result<(), Error> {
        let (Some([groups, pages]), batch) = (self.shared, self.problem.batch) else { return Ok(()) };
        let wrong = |option: &str, value, expected: std::fmt::Arguments<'_>| {
            Err(Error::Invalid(format!("{option} {value}: {expected}")))
        };
        let Some((_, columns)) = &self.table else {
            let expected = format_args!("only a block table lets sequences share pages; add `block_table`");
            return wrong("--shared-pages", pages, expected);
        };
        if groups == 0 || !batch.is_multiple_of(groups) {
            let expected = format_args!("it must divide {batch}, the number of sequences");
            return wrong("--prefix-groups", groups, expected);
        }
        if pages == 0 || pages >= *columns {
            let expected = format_args!(
                "it must be 1 or more and below {columns}, the columns of `block_table`: behind the shared \
                 pages, each sequence has at least one page of its own"
            );
            return wrong("--shared-pages", pages, expected);
        }
        let each = batch / groups;
        let is_causal = self.problem.mask.sides().1 == Some(0);
        let behind = if is_causal { self.problem.seqlen_q - 1 } else { 0 };
        let least = pages.saturating_mul(self.pages.shape[1]).saturating_add(behind);
        for (b, length) in self.lengths.iter().enumerate() {
            let mut shared = 0..pages;
            if let Some(i) = shared.find(|i| self.page(b, *i) != self.page(b / each * each, *i)) {
                let what = format_args!("`block_table[{b}, {i}]` is {}", self.page(b, i));
                let wanted = self.page(b / each * each, i);
                return Err(file.invalid(format_args!("{what}; it must be {wanted}, its group's page")));
            }
            // The check of lengths has refused negative lengths.
            if (*length as usize) < least {
                let what = format_args!("`seqused_k[{b}]` is {length}; it must be {least} or more");
                let keys = match behind {
                    0 => String::new(),
                    _ => format!(", and {behind} keys behind them that the mask needs"),
                };
                return Err(file.invalid(format_args!("{what}, the keys of the shared pages{keys}")));
            }
        }
        Ok(())
    }
}
