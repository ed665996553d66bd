//! Append cases in host memory.
use super::rotary::{Table, positions};
use super::{AppendCase, Lies, RotaryCase, Scales, append};
use crate::arithmetic::{decode, encode};
use crate::cycled;
use crate::inputs::Random;
use crate::tensor::TensorError;
use crate::tolerance::Rule;
use crate::work::{Buffer, GUARD, Input, Judge, Judgement, LaunchOptions, Rows, Work, Written};
use ferroflash::DType;
use ferroflash::plan::AnyRequest;
use ferroflash::request::{Append, KvPages, KvScale, Slots, TensorView, TokenScales};

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
    rotary: Option<Turn>,
}

/// The rotation of a case in host memory.
#[derive(Clone, Debug)]
struct Turn {
    of: RotaryCase,
    table: Table,
    /// Positions of all tokens in each of two launches.
    positions: [Vec<i64>; 2],
    /// Elements of the queries.
    q: Vec<u16>,
}

impl AppendMemory {
    /// Draws elements of all magnitudes: some are beyond e4m3's range, and some are NaN. Every second row
    /// of an int8 cache has numbers only, and some rows have zeros only. Slots are in random order.
    pub fn new(case: &AppendCase) -> Self {
        let mut random = Random::new(case.seed);
        let slots = [(); 2].map(|()| slots(case, &mut random));
        let rows = [(); 2].map(|()| numbers(case, case.heads, &mut random));
        let rotary = case.rotary.map(|of| Turn {
            of,
            table: Table::new(case, &of),
            positions: [(); 2].map(|()| positions(case, &of, &mut random)),
            q: numbers(case, of.query_heads.unwrap_or(0), &mut random),
        });
        AppendMemory { case: *case, rows, slots, rotary }
    }

    /// Returns inputs for a measurement. The elements repeat with a long period, because such inputs are fast
    /// to generate. Every token has a slot if the cache has enough slots.
    pub fn to_measure(case: &AppendCase) -> Self {
        let mut slots: Vec<i64> = (0..(case.pages[0] * case.pages[1]) as i64).collect();
        Random::new(case.seed).shuffle(&mut slots);
        slots.resize(case.tokens[0], -1);
        let count = (case.tokens[0] + case.tokens[1]) * case.heads * case.head_dim;
        let rows = [0, 1].map(|tensor| cycled::halves(case.dtypes[0], tensor, count));
        let rotary = case.rotary.map(|of| {
            let positions: Vec<i64> = (0..case.tokens[0]).map(|token| (token % of.rows) as i64).collect();
            let count = (case.tokens[0] + case.tokens[1]) * of.query_heads.unwrap_or(0) * case.head_dim;
            let q = cycled::halves(case.dtypes[0], 2, count);
            Turn { of, table: Table::new(case, &of), positions: [positions.clone(), positions], q }
        });
        AppendMemory { case: *case, rows, slots: [slots.clone(), slots], rotary }
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
            Lies::Latent(columns) => {
                let pages = KvPages::latent(TensorView::bshd(at[0], elements, stored, shape), columns);
                [pages.keys, pages.values]
            }
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
        integers(&self.slots[round], self.case.wide)
    }

    /// Returns the position of the caches' buffers, and of the queries' buffer, among the outputs.
    fn caches(&self) -> usize {
        match self.case.lies {
            Lies::Nhd | Lies::Hnd => 2,
            Lies::Interleaved { .. } | Lies::Latent(_) => 1,
        }
    }

    /// Returns the position of the scales of keys among the outputs, in an int8 cache. The scales of values
    /// follow.
    fn scales(&self) -> Option<usize> {
        let rotates = self.rotary.as_ref().is_some_and(|turn| turn.of.query_heads.is_some());
        (self.case.dtypes[1] == DType::Int8).then(|| self.caches() + usize::from(rotates))
    }

    /// Returns the new keys as they go into the cache.
    fn keys(&self, round: usize) -> Vec<u16> {
        let mut keys = self.rows[0].clone();
        if let Some(turn) = &self.rotary {
            turn.rotate(&mut keys, &self.case, self.case.heads, round);
        }
        keys
    }

    /// Returns the expected bytes of the caches after a launch.
    fn expected(&self, round: usize) -> Vec<Vec<u8>> {
        let mut caches: Vec<_> = self.outputs().into_iter().map(|(_, bytes)| bytes).collect();
        let (views, count) = (self.views(&[0, 0]), self.caches());
        let latent = matches!(self.case.lies, Lies::Latent(_));
        let tensors = [self.keys(round), self.rows[1].clone()];
        for (which, (view, rows)) in views.into_iter().zip(&tensors).take(2 - usize::from(latent)).enumerate()
        {
            // `view.address` is 0, the address of the first key.
            let first = GUARD + view.address as usize;
            let scales = self.scales().map(|at| at + which);
            let mut of_rows = scales.map(|at| std::mem::take(&mut caches[at]));
            let cache = &mut caches[which % count][first..];
            let to = of_rows.as_mut().map_or(&mut [][..], |bytes| &mut bytes[GUARD..]);
            append(cache, to, &view, rows, self.case.dtypes[0], &self.slots[round], |head| {
                self.scale(which, head)
            });
            if let Some((at, bytes)) = scales.zip(of_rows) {
                caches[at] = bytes;
            }
        }
        if let Some(turn) = &self.rotary
            && let Some(heads) = turn.of.query_heads
        {
            let mut q = turn.q.clone();
            turn.rotate(&mut q, &self.case, heads, round);
            // Rows behind the last slot keep their bytes.
            let bytes = 2 * self.case.tokens[0] * heads * self.case.head_dim;
            let q: Vec<u8> = q.iter().flat_map(|bits| bits.to_ne_bytes()).take(bytes).collect();
            caches[count][GUARD..][..bytes].copy_from_slice(&q);
        }
        caches
    }
}

impl Turn {
    /// Rotates all rows that have a position, of `heads` heads each.
    fn rotate(&self, rows: &mut [u16], case: &AppendCase, heads: usize, round: usize) {
        let tokens = rows.chunks_mut(heads * case.head_dim).zip(&self.positions[round]);
        for (token, &position) in tokens {
            for head in token.chunks_mut(case.head_dim) {
                self.table.rotate(head, case.dtypes[0], position);
            }
        }
    }
}

/// Returns the bytes of integers as i64 or i32.
fn integers(all: &[i64], wide: bool) -> Vec<u8> {
    match wide {
        true => all.iter().flat_map(|x| x.to_ne_bytes()).collect(),
        false => all.iter().flat_map(|x| (*x as i32).to_ne_bytes()).collect(),
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

fn numbers(case: &AppendCase, heads: usize, random: &mut Random) -> Vec<u16> {
    let count = (case.tokens[0] + case.tokens[1]) * heads * case.head_dim;
    let mut numbers = random.normals(case.dtypes[0], count);
    for bits in numbers.iter_mut().skip(1).step_by(3) {
        *bits = random.bits() as u16;
    }
    if case.dtypes[1] == DType::Int8 {
        for (i, row) in numbers.chunks_mut(case.head_dim).enumerate().filter(|(i, _)| i % 4 != 0) {
            for bits in &mut *row {
                // Integers and halves, so that quotients lie between two integers if the scale is 1; a few
                // bits of the mantissa, which are subnormal numbers; zeros; or any numbers.
                *bits = match i % 16 {
                    1 => encode(case.dtypes[0], (random.bits() % 509) as f64 / 2.0 - 127.0),
                    2 => *bits & 0x807f,
                    3 => *bits & 0x8000,
                    _ if decode(case.dtypes[0], *bits).is_finite() => *bits,
                    _ => 0,
                };
            }
            if i % 16 == 1 {
                row[0] = encode(case.dtypes[0], 127.0);
            }
        }
    }
    numbers
}

impl Work for AppendMemory {
    fn inputs(&self) -> Vec<Input> {
        let rows = |which: usize| self.rows[which].iter().flat_map(|bits| bits.to_ne_bytes()).collect();
        let scales = |which| (0..self.case.heads).flat_map(move |head| self.scale(which, head).to_ne_bytes());
        let mut inputs = vec![
            Input::new("k", rows(0)),
            Input::new("v", rows(1)),
            Input::new("slots", self.slot_bytes(0)),
            Input::new("k_scale", scales(0).collect()),
            Input::new("v_scale", scales(1).collect()),
        ];
        if let Some(turn) = &self.rotary {
            let [cos, sin] = turn.table.bytes();
            inputs.push(Input::new("positions", integers(&turn.positions[0], turn.of.wide_positions)));
            inputs.push(Input::new("cos", cos));
            inputs.extend((!sin.is_empty()).then(|| Input::new("sin", sin)));
            if turn.of.query_heads.is_some() && !turn.of.in_place {
                inputs.push(Input::new("q", turn.q.iter().flat_map(|bits| bits.to_ne_bytes()).collect()));
            }
        }
        inputs
    }

    fn outputs(&self) -> Vec<Buffer> {
        let bytes = self.elements() * self.case.dtypes[1].bytes();
        let buffer = |name: &str, bytes: usize| (name.into(), vec![OLD; bytes + 2 * GUARD]);
        let mut outputs = match self.case.lies {
            Lies::Interleaved { .. } => vec![buffer("cache", 2 * bytes)],
            Lies::Latent(_) => vec![buffer("rows", bytes)],
            Lies::Nhd | Lies::Hnd => vec![buffer("keys", bytes), buffer("values", bytes)],
        };
        if let Some(Turn { of: RotaryCase { query_heads: Some(_), in_place, .. }, q, .. }) = &self.rotary {
            let (name, mut bytes) = buffer("rotated q", 2 * q.len());
            if *in_place {
                let q: Vec<u8> = q.iter().flat_map(|bits| bits.to_ne_bytes()).collect();
                bytes[GUARD..][..q.len()].copy_from_slice(&q);
            }
            outputs.push((name, bytes));
        }
        if self.scales().is_some() {
            let bytes = self.elements() / self.case.head_dim * 4;
            outputs.extend(["k_scale", "v_scale"].map(|name| buffer(name, bytes)));
        }
        outputs
    }

    fn request<'a>(&'a self, inputs: &[u64], outputs: &[u64], _: LaunchOptions<'a>) -> AnyRequest<'a> {
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
        let pages = match self.scales() {
            None => KvPages::new(keys, values).scales(k_scale, v_scale),
            Some(at) => {
                let [k, v] = [0, 1].map(|which| {
                    let elements = (self.elements() / head_dim) as u64;
                    TokenScales::contiguous(outputs[at + which] + GUARD as u64, elements, heads)
                });
                KvPages::int8(keys, values, k, v)
            }
        };
        let append = match self.case.lies {
            Lies::Latent(_) => Append::latent(k, pages, slots),
            _ => Append::new(k, v, pages, slots),
        };
        let Some(turn) = &self.rotary else { return AnyRequest::Append(append) };
        let tables = [inputs[6], if turn.of.together { inputs[6] } else { inputs[7] }];
        let rotary = turn.table.request(tables, inputs[5], tokens);
        let Some(heads) = turn.of.query_heads else { return AnyRequest::Append(append.rotary(rotary)) };
        let view =
            |at| TensorView::bshd(at, turn.q.len() as u64, dtype, [1, tokens + padding, heads, head_dim]);
        let rotated = view(outputs[self.caches()] + GUARD as u64);
        let q = match turn.of.in_place {
            true => rotated,
            false => view(inputs[if turn.of.together { 7 } else { 8 }]),
        };
        AnyRequest::Append(append.rotary(rotary.queries(q, rotated)))
    }

    fn rounds(&self) -> Vec<Vec<(usize, Vec<u8>)>> {
        let round = |round: usize| {
            let positions = self
                .rotary
                .as_ref()
                .map(|turn| (5, integers(&turn.positions[round], turn.of.wide_positions)));
            std::iter::once((2, self.slot_bytes(round))).chain(positions).collect()
        };
        [0, 1].map(round).into()
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
