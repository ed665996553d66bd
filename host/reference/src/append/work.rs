//! Append cases in host memory.
use super::{AppendCase, Lies, Scales, append};
use crate::cycled;
use crate::inputs::Random;
use crate::tensor::TensorError;
use crate::tolerance::Rule;
use crate::work::{Asked, Buffer, GUARD, Input, Judge, Judgement, LaunchOptions, Rows, Work, Written};
use ferroflash::request::{Append, KvPages, KvScale, Slots, TensorView};

/// The value of every byte of a cache before the append. A row that no slot names must keep this value.
const OLD: u8 = 0xa5;

/// A case in host memory.
#[derive(Clone, Debug)]
pub struct AppendMemory {
    case: AppendCase,
    /// Elements of the new keys and of the new values.
    rows: [Vec<u16>; 2],
    /// Slots of all tokens in each of two launches.
    slots: [Vec<i64>; 2],
}

impl AppendMemory {
    /// Draws elements of all magnitudes: some are beyond e4m3's range, and some are NaN. Slots are in random
    /// order.
    pub fn new(case: &AppendCase) -> Self {
        let mut random = Random::new(case.seed);
        let slots = [(); 2].map(|()| slots(case, &mut random));
        let rows = [(); 2].map(|()| numbers(case, &mut random));
        AppendMemory { case: *case, rows, slots }
    }

    /// Returns inputs for a measurement. The elements repeat with a long period, because such inputs are fast
    /// to generate. Every token has a slot if the cache has enough slots.
    pub fn to_measure(case: &AppendCase) -> Self {
        let mut slots: Vec<i64> = (0..(case.pages[0] * case.pages[1]) as i64).collect();
        Random::new(case.seed).shuffle(&mut slots);
        slots.resize(case.tokens[0], -1);
        let count = (case.tokens[0] + case.tokens[1]) * case.heads * case.head_dim;
        let rows = [0, 1].map(|tensor| cycled::halves(case.dtypes[0], tensor, count));
        AppendMemory { case: *case, rows, slots: [slots.clone(), slots] }
    }

    /// Returns the number of elements of the cache's keys.
    fn elements(&self) -> usize {
        let AppendCase { pages: [pages, page], heads, head_dim, .. } = self.case;
        pages * page * heads * head_dim
    }

    /// Returns views of the cache's keys and values, whose buffers start at the addresses `at`.
    fn views(&self, at: &[u64]) -> [TensorView; 2] {
        let AppendCase { pages: [pages, page], heads, head_dim, dtypes: [_, stored], .. } = self.case;
        let (shape, elements) = ([pages, page, heads, head_dim], self.elements() as u64);
        match self.case.lies {
            Lies::Interleaved { hnd } => TensorView::interleaved(at[0], 2 * elements, stored, shape, hnd),
            Lies::Nhd => [0, 1].map(|i| TensorView::bshd(at[i], elements, stored, shape)),
            Lies::Hnd => [0, 1].map(|i| TensorView::bhsd(at[i], elements, stored, shape)),
        }
    }

    /// Returns the scale that divides a head's keys (`which` = 0) or values (1).
    fn scale(&self, which: usize, head: usize) -> f32 {
        match self.case.scales {
            Scales::One => 1.0,
            Scales::Values(k, v) => [k, v][which],
            Scales::Heads => (head + 1) as f32 * [0.3, 7.0][which],
        }
    }

    fn slot_bytes(&self, round: usize) -> Vec<u8> {
        match self.case.wide {
            true => self.slots[round].iter().flat_map(|slot| slot.to_ne_bytes()).collect(),
            false => self.slots[round].iter().flat_map(|slot| (*slot as i32).to_ne_bytes()).collect(),
        }
    }

    /// Returns the expected bytes of the caches after a launch.
    fn expected(&self, round: usize) -> Vec<Vec<u8>> {
        let mut caches: Vec<_> = self.outputs().into_iter().map(|(_, bytes)| bytes).collect();
        let (views, count) = (self.views(&[0, 0]), caches.len());
        for (which, (view, rows)) in views.into_iter().zip(&self.rows).enumerate() {
            // `view.address` is 0, the address of the first key.
            let first = GUARD + view.address as usize;
            let cache = &mut caches[which % count][first..];
            append(cache, &view, rows, self.case.dtypes[0], &self.slots[round], |head| {
                self.scale(which, head)
            });
        }
        caches
    }
}

/// Returns slots of all tokens: distinct, in random order, with invalid slots between them.
fn slots(case: &AppendCase, random: &mut Random) -> Vec<i64> {
    let all = (case.pages[0] * case.pages[1]) as i64;
    let mut free: Vec<i64> = (0..all).collect();
    let none = match case.wide {
        true => vec![-1, all, all + 1, i64::MIN, i64::MAX, 1 << 32, (1 << 32) + 1, -(1 << 32)],
        false => vec![-1, all, all + 1, i64::from(i32::MIN), i64::from(i32::MAX)],
    };
    let mut slot = |_| {
        let bits = random.bits() as usize;
        if free.is_empty() || bits.is_multiple_of(5) {
            return none[bits / 5 % none.len()];
        }
        free.swap_remove(bits / 5 % free.len())
    };
    (0..case.tokens[0]).map(&mut slot).collect()
}

fn numbers(case: &AppendCase, random: &mut Random) -> Vec<u16> {
    let count = (case.tokens[0] + case.tokens[1]) * case.heads * case.head_dim;
    let mut numbers = random.normals(case.dtypes[0], count);
    for bits in numbers.iter_mut().skip(1).step_by(3) {
        *bits = random.bits() as u16;
    }
    numbers
}

impl Work for AppendMemory {
    fn inputs(&self) -> Vec<Input> {
        let rows = |which: usize| self.rows[which].iter().flat_map(|bits| bits.to_ne_bytes()).collect();
        let scales = |which| (0..self.case.heads).flat_map(move |head| self.scale(which, head).to_ne_bytes());
        vec![
            Input::new("k", rows(0)),
            Input::new("v", rows(1)),
            Input::new("slots", self.slot_bytes(0)),
            Input::new("k_scale", scales(0).collect()),
            Input::new("v_scale", scales(1).collect()),
        ]
    }

    fn outputs(&self) -> Vec<Buffer> {
        let bytes = self.elements() * self.case.dtypes[1].bytes();
        let buffer = |name: &str, bytes: usize| (name.into(), vec![OLD; bytes + 2 * GUARD]);
        match self.case.lies {
            Lies::Interleaved { .. } => vec![buffer("cache", 2 * bytes)],
            Lies::Nhd | Lies::Hnd => vec![buffer("keys", bytes), buffer("values", bytes)],
        }
    }

    fn request<'a>(&'a self, inputs: &[u64], outputs: &[u64], _: LaunchOptions<'a>) -> Asked<'a> {
        let AppendCase { dtypes: [dtype, _], heads, head_dim, tokens: [tokens, padding], wide, .. } =
            self.case;
        let shape = [1, tokens + padding, heads, head_dim];
        let [k, v] = [0, 1].map(|i| TensorView::bshd(inputs[i], self.rows[i].len() as u64, dtype, shape));
        let caches: Vec<_> = outputs.iter().map(|at| at + GUARD as u64).collect();
        let [keys, values] = self.views(&caches);
        let [k_scale, v_scale] = [0, 1].map(|which| match self.case.scales {
            Scales::One => KvScale::One,
            Scales::Values(..) => KvScale::Value(self.scale(which, 0)),
            Scales::Heads => {
                let (address, elements) = (inputs[3 + which], heads as u64);
                KvScale::Device { address, elements, strides: [0, 1] }
            }
        });
        let slots = if wide { Slots::i64 } else { Slots::i32 }(inputs[2], tokens as u64);
        Asked::Append(Append::new(k, v, KvPages::new(keys, values).scales(k_scale, v_scale), slots))
    }

    fn rounds(&self) -> Vec<Vec<(usize, Vec<u8>)>> {
        [0, 1].map(|round| vec![(2, self.slot_bytes(round))]).into()
    }

    fn rows(&self, _: &Written) -> Option<Rows> {
        None
    }

    fn judge(&self, _: Rule) -> Result<Judge<'_>, TensorError> {
        let expected = [0, 1].map(|round| self.expected(round));
        Ok(Box::new(move |round, written| {
            let pairs = written.outputs.iter().zip(&expected[round]);
            let differing = pairs.map(|(got, want)| got.iter().zip(want).filter(|(a, b)| a != b).count());
            match differing.sum::<usize>() {
                0 => Judgement::default(),
                count => Judgement::failed(format_args!("{count} bytes differ from the reference")),
            }
        }))
    }
}
