//! One step of a batch: the integers on the device that every layer's KV cache needs.
use crate::errors::{invalid, refused};
use crate::gpu::pages::{MOST, Sequence};
use crate::gpu::shared::{Groups, groups};
use candle::backend::BackendStorage;
use candle::cuda_backend::CudaDType;
use candle::cuda_backend::cudarc::driver::DeviceRepr;
use candle::{CpuStorage, CudaStorage, DType, Device, InplaceOp1, Layout, Result, Tensor};
use ferroflash::Error;

/// A step: slots of its new keys, and each sequence's pages. Create a `Step` once, [set](Step::set) it for
/// each step of the model, and share it with the KV caches of all layers. The memory of a `Step` never moves.
/// A CUDA graph can therefore be replayed after another `set` with equal numbers of sequences and tokens.
#[derive(Debug)]
pub struct Step {
    most: Most,
    page: usize,
    /// Whether launches read shared pages once.
    shares: bool,
    /// The integers: lengths, offsets, positions, last rows, keys behind shared pages, and block table, one
    /// after another.
    integers: Tensor,
    slots: Tensor,
    host: (Vec<u32>, Vec<i64>),
    sequences: usize,
    tokens: usize,
    parts: Vec<Part>,
}

/// The capacity of a [`Step`].
#[derive(Clone, Copy, Debug)]
struct Most {
    sequences: usize,
    tokens: usize,
    columns: usize,
}

impl Most {
    /// Returns the offsets of lengths, sequence offsets, positions, last rows, keys behind shared pages and
    /// block table, and the end of the block table.
    fn parts(&self) -> [usize; 7] {
        let mut at = 0;
        let sizes = [self.sequences, self.sequences + 1, self.tokens, self.sequences, self.sequences];
        let [lengths, starts, positions, last, rest] = sizes.map(|size| {
            let begin = at;
            at += size;
            begin
        });
        [lengths, starts, positions, last, rest, at, at + self.sequences * self.columns]
    }
}

/// The sequences of a step that one launch covers, with the launch's parameters.
#[derive(Debug)]
pub(crate) struct Part {
    pub sequences: usize,
    pub first_row: usize,
    pub rows: usize,
    /// The number of queries per sequence, if all sequences have the same number. Otherwise the maximum
    /// number.
    pub widest: usize,
    pub even: bool,
    /// The offsets of the part's sequences.
    pub starts: Tensor,
    pub table: Tensor,
    pub lengths: Tensor,
    /// Groups of sequences that share their first pages, and the number of each sequence's keys behind them.
    pub shared: Option<(Groups, Tensor)>,
}

impl Step {
    /// Creates a step for at most `sequences` sequences and `tokens` tokens in all, on pages of `page` keys,
    /// with at most `columns` pages per sequence.
    ///
    /// # Errors
    /// Returns an error if device memory is insufficient, a page has no key, or there are 2^31 integers or
    /// more.
    pub fn new(
        sequences: usize,
        tokens: usize,
        columns: usize,
        page: usize,
        device: &Device,
    ) -> Result<Step> {
        if page == 0 {
            return Err(invalid("page", page, "1 key or more"));
        }
        let table = sequences.saturating_mul(columns);
        if [tokens, table].into_iter().fold(sequences.saturating_mul(5), usize::saturating_add) > MOST {
            let value = format!("{sequences} sequences of {columns} pages, {tokens} tokens");
            return Err(invalid("step", value, format_args!("at most {MOST} integers in total")));
        }
        let most = Most { sequences, tokens, columns };
        let end = most.parts()[6];
        let integers = Tensor::zeros(end, DType::U32, device)?;
        let slots = Tensor::zeros(tokens, DType::I64, device)?;
        let host = (vec![0; end], vec![0; tokens]);
        let (shares, parts) = (false, Vec::new());
        Ok(Step { most, page, shares, integers, slots, host, sequences: 0, tokens: 0, parts })
    }

    /// Makes launches read pages that sequences [share](crate::PagePool::share) once for all queries of a
    /// group, if that pays. [`Step::set`] finds the groups: all sequences, or equal numbers of consecutive
    /// sequences, with equal numbers of new tokens. Put sequences with one prefix side by side.
    ///
    /// | shared keys from which it pays on an H200, with 8 key heads of 128 columns | sequences |
    /// |---|---|
    /// | 4224 | 4 |
    /// | 409 | 32 |
    /// | 100 | 128 |
    ///
    /// With fewer shared keys, launches read whole sequences. docs/limits.md has the rule ("Shared
    /// prefixes").
    ///
    /// - [`Step::set`] also compares the page lists of neighbouring sequences.
    /// - The first launch with other groups, or another number of shared pages, makes a plan.
    /// - Launches take a workspace for the partial results.
    /// - The bits of a sequence's result depend on its group.
    /// - A CUDA graph may be replayed only while [`Step::shared`] returns what it returned at the capture.
    pub fn sharing(self) -> Self {
        Step { shares: true, ..self }
    }

    /// Sets the sequences of a step, each with its number of new tokens, in the order of their rows. Each
    /// sequence must already have its pages ([`PagePool::grow`](crate::PagePool::grow)). Put sequences with
    /// one new token first: only these leading sequences run decode kernels.
    ///
    /// # Errors
    /// Returns an error if the step exceeds its capacity, a sequence lacks pages, or the driver fails.
    pub fn set(&mut self, sequences: &[(&Sequence, usize)]) -> Result<()> {
        let Most { sequences: most, columns, .. } = self.most;
        let tokens = sequences.iter().fold(0, |sum: usize, (_, tokens)| sum.saturating_add(*tokens));
        if sequences.is_empty() || sequences.len() > most {
            return Err(invalid("sequences", sequences.len(), format_args!("1 to {most}")));
        }
        if sequences.iter().any(|(_, tokens)| *tokens == 0) || tokens > self.most.tokens {
            let expected = format_args!("1 or more per sequence, at most {} in total", self.most.tokens);
            return Err(invalid("tokens", tokens, expected));
        }
        let singles = sequences.iter().take_while(|(_, tokens)| *tokens == 1).count();
        let [lengths, starts, positions, last, rest, table, _] = self.most.parts();
        let (integers, slots) = &mut self.host;
        let mut row = 0;
        for (b, (sequence, tokens)) in sequences.iter().enumerate() {
            let (pages, keys) = (sequence.pages(), sequence.with(*tokens)?);
            let needed = keys.div_ceil(self.page);
            if pages.len() < needed || needed > columns {
                let expected = format_args!("{needed} for {keys} keys, and at most {columns}");
                return Err(invalid("pages of a sequence", pages.len(), expected));
            }
            integers[lengths + b] = keys as u32;
            let entries = &mut integers[table + b * columns..][..columns];
            entries[..needed].copy_from_slice(&pages[..needed]);
            entries[needed..].fill(0);
            for at in sequence.keys()..keys {
                integers[positions + row] = at as u32;
                slots[row] = i64::from(pages[at / self.page]) * self.page as i64 + (at % self.page) as i64;
                row += 1;
            }
            integers[last + b] = row as u32 - 1;
            // The offsets of the prefill part count rows from 0.
            integers[starts + b + 1] = (row - singles.min(row)) as u32;
        }
        integers[starts + singles] = 0;
        let parts = [0..singles, singles..sequences.len()].map(|part| {
            let own = &sequences[part.clone()];
            (part, self.shares.then(|| groups(own, self.page, columns)).flatten())
        });
        for (part, shared) in &parts {
            let keys = shared.map_or(0, |groups| groups.pages * self.page) as u32;
            part.clone().for_each(|b| integers[rest + b] = integers[lengths + b] - keys);
        }
        self.integers.inplace_op1(&Upload(integers))?;
        self.slots.inplace_op1(&Upload(&slots[..tokens]))?;
        (self.sequences, self.tokens) = (sequences.len(), tokens);
        self.parts = parts
            .into_iter()
            .filter(|(part, _)| !part.is_empty())
            .map(|(part, shared)| self.part(&sequences[part.clone()], part.start, shared))
            .collect::<Result<_>>()?;
        Ok(())
    }

    /// Returns the part with the sequences from `first` on. Each sequence before `first` has one token.
    fn part(&self, sequences: &[(&Sequence, usize)], first: usize, shared: Option<Groups>) -> Result<Part> {
        let tokens = || sequences.iter().map(|(_, tokens)| *tokens);
        let widest = tokens().max().unwrap_or(1);
        let count = sequences.len();
        let rest = || self.integers.narrow(0, self.most.parts()[4] + first, count);
        Ok(Part {
            sequences: count,
            first_row: first,
            rows: tokens().sum(),
            widest,
            even: tokens().all(|tokens| tokens == widest),
            starts: self.integers.narrow(0, self.most.parts()[1] + first, count + 1)?,
            table: self.block_table()?.narrow(0, first, count)?,
            lengths: self.lengths()?.narrow(0, first, count)?,
            shared: shared.map(|groups| Ok::<_, candle::Error>((groups, rest()?))).transpose()?,
        })
    }

    /// Returns the number of sequences of this step.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// Returns the number of rows of this step: the tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the number of keys per page.
    pub fn page(&self) -> usize {
        self.page
    }

    /// Returns each row's position in its sequence, u32 `[tokens]`.
    ///
    /// # Errors
    /// After [`Step::set`], this function returns no error.
    pub fn positions(&self) -> Result<Tensor> {
        self.integers.narrow(0, self.most.parts()[2], self.tokens)
    }

    /// Returns each sequence's last row, u32 `[sequences]`. The logits of these rows predict the next tokens.
    ///
    /// # Errors
    /// After [`Step::set`], this function returns no error.
    pub fn last_rows(&self) -> Result<Tensor> {
        self.integers.narrow(0, self.most.parts()[3], self.sequences)
    }

    /// Returns the slot mapping: each row's slot, i64 `[tokens]`.
    ///
    /// # Errors
    /// After [`Step::set`], this function returns no error.
    pub fn slots(&self) -> Result<Tensor> {
        self.slots.narrow(0, 0, self.tokens)
    }

    /// Returns the number of keys of each sequence, including this step's keys, u32 `[sequences]`.
    ///
    /// # Errors
    /// After [`Step::set`], this function returns no error.
    pub fn lengths(&self) -> Result<Tensor> {
        self.integers.narrow(0, 0, self.sequences)
    }

    /// Returns the block table: page indices of each sequence, u32 `[sequences, columns]`.
    ///
    /// # Errors
    /// After [`Step::set`], this function returns no error.
    pub fn block_table(&self) -> Result<Tensor> {
        let Most { columns, .. } = self.most;
        let all = self.integers.narrow(0, self.most.parts()[5], self.sequences * columns)?;
        all.reshape((self.sequences, columns))
    }

    /// Returns the number of groups that share pages, and the number of their shared pages, for each launch
    /// of a layer: the sequences with one new token, then the others. `None` means that a launch reads whole
    /// sequences.
    pub fn shared(&self) -> Vec<Option<(usize, usize)>> {
        let groups = |part: &Part| part.shared.as_ref().map(|(groups, _)| (groups.count, groups.pages));
        self.parts.iter().map(groups).collect()
    }

    /// Returns the decode part and the prefill part.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

/// An operation that uploads integers into a tensor's memory.
struct Upload<'a, T>(&'a [T]);

impl<T: CudaDType + DeviceRepr + 'static> InplaceOp1 for Upload<'_, T> {
    fn name(&self) -> &'static str {
        "upload"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        candle::bail!("no cpu support for flash-attn")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let device = storage.device().clone();
        let (at, all) = (layout.start_offset(), storage.as_cuda_slice_mut::<T>()?);
        let Some(mut place) = all.try_slice_mut(at..at + self.0.len()) else {
            return Err(refused(Error::invalid("upload", self.0.len(), "it must fit its tensor")));
        };
        device.memcpy_htod(self.0, &mut place)
    }
}
