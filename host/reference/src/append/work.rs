//! Append cases in host memory.
use super::rotary::{Table, integers, positions};
use super::{AppendCase, Lies, RotaryCase, Scales, append};
use crate::arithmetic::{decode, encode};
use crate::cycled;
use crate::inputs::Random;
use crate::tensor::TensorError;
use crate::tolerance::Rule;
use crate::work::{Binder, Buffer, GUARD, Judge, Judgement, LaunchOptions, Rows, Work, Written};
use ferroflash::DType;
use ferroflash::plan::AnyRequest;
use ferroflash::request::{Append, KvPages, KvScale, Slots, TensorView, TokenScales};
use ferroflash::spec::E4m3Scaled;

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

    /// Returns the number of elements of a row in the cache.
    fn stored_columns(&self) -> usize {
        match self.case.dtypes[1] {
            DType::E4m3Scaled => E4m3Scaled::ROW_BYTES,
            _ => self.case.head_dim,
        }
    }

    /// Returns the number of elements of the cache's keys.
    fn elements(&self) -> usize {
        let AppendCase { pages: [pages, page], heads, .. } = self.case;
        pages * page * heads * self.stored_columns()
    }

    /// Returns the names of the buffers of the cache's keys and of its values.
    fn names(&self) -> [&'static str; 2] {
        match self.case.lies {
            Lies::Nhd | Lies::Hnd => ["keys", "values"],
            Lies::Interleaved { .. } => ["cache"; 2],
            Lies::Latent(_) => ["rows"; 2],
        }
    }

    /// Returns views of the cache's keys and values, whose buffers start at the addresses `at`.
    fn views(&self, at: [u64; 2]) -> [TensorView; 2] {
        let AppendCase { pages: [pages, page], heads, dtypes: [_, stored], .. } = self.case;
        let (shape, elements) = ([pages, page, heads, self.stored_columns()], self.elements() as u64);
        match self.case.lies {
            Lies::Interleaved { hnd } => TensorView::interleaved(at[0], 2 * elements, stored, shape, hnd),
            Lies::Latent(columns) => {
                let pages = KvPages::latent(TensorView::bshd(at[0], elements, stored, shape), columns);
                [pages.keys, pages.values]
            }
            Lies::Nhd => at.map(|at| TensorView::bshd(at, elements, stored, shape)),
            Lies::Hnd => at.map(|at| TensorView::bhsd(at, elements, stored, shape)),
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

    /// Returns the cache.
    fn pages(&self, binder: &mut Binder<'_>) -> KvPages {
        let (AppendCase { heads, head_dim, dtypes: [_, stored], .. }, names) = (self.case, self.names());
        let tensors = if matches!(self.case.lies, Lies::Interleaved { .. }) { 2 } else { 1 };
        let bytes = self.elements() * stored.bytes() * tensors;
        let mut cache = |name| old(binder, name, || vec![OLD; bytes]);
        let keys = cache(names[0]);
        let values = if names[0] == names[1] { keys } else { cache(names[1]) };
        let [keys, values] = self.views([keys, values]);
        let scales = [("k_scale", 0), ("v_scale", 1)];
        if stored == DType::Int8 {
            let rows = self.elements() / head_dim;
            let [k, v] = scales.map(|(name, _)| {
                let address = old(binder, name, || vec![OLD; 4 * rows]);
                TokenScales::contiguous(address, rows as u64, heads)
            });
            return KvPages::int8(keys, values, k, v);
        }
        let [k, v] = scales.map(|(name, which)| match self.case.scales {
            Scales::One => KvScale::One,
            Scales::Values(..) => KvScale::Value(self.scale(which, 0)),
            Scales::Heads => {
                let all = || (0..heads).flat_map(|head| self.scale(which, head).to_ne_bytes()).collect();
                let (address, elements) = (binder.input(name, all), heads as u64);
                KvScale::Device { address, elements, strides: [0, 1] }
            }
        });
        // The values of a latent cache are columns of its keys.
        let v = if matches!(self.case.lies, Lies::Latent(_)) { KvScale::One } else { v };
        KvPages::new(keys, values).scales(k, v)
    }

    /// Returns the new keys as they go into the cache.
    fn keys(&self, round: usize) -> Vec<u16> {
        let mut keys = self.rows[0].clone();
        if let Some(turn) = &self.rotary {
            turn.rotate(&mut keys, &self.case, self.case.heads, round);
        }
        keys
    }

    /// Returns the expected bytes of the outputs after a launch.
    fn expected(&self, round: usize) -> Vec<Buffer> {
        let mut outputs = self.outputs();
        let mut write = |name: &str, at: usize, write: &mut dyn FnMut(&mut [u8])| {
            let own = outputs.iter_mut().filter(|(own, _)| own == name);
            own.for_each(|(_, bytes)| write(&mut bytes[GUARD + at..]));
        };
        let latent = matches!(self.case.lies, Lies::Latent(_));
        let tensors = [(self.keys(round), "k_scale"), (self.rows[1].clone(), "v_scale")];
        let all = self.views([0; 2]).into_iter().zip(self.names()).zip(tensors).enumerate();
        for (which, ((view, name), (rows, scales))) in all.take(2 - usize::from(latent)) {
            let (scale, slots) = (|head| self.scale(which, head), &self.slots[round]);
            let mut of_rows = vec![];
            // `view.address` is the distance of the first key or value from the buffer's start.
            write(name, view.address as usize, &mut |cache| {
                of_rows = append(cache, &view, &rows, self.case.dtypes[0], slots, scale);
            });
            write(scales, 0, &mut |bytes| {
                for (row, scale) in &of_rows {
                    bytes[4 * row..][..4].copy_from_slice(&scale.to_ne_bytes());
                }
            });
        }
        if let Some(turn) = &self.rotary {
            let (mut q, heads) = (turn.q.clone(), turn.of.query_heads.unwrap_or(1));
            turn.rotate(&mut q, &self.case, heads, round);
            // Rows behind the last slot keep their bytes.
            q.truncate(self.case.tokens[0] * heads * self.case.head_dim);
            write("rotated q", 0, &mut |bytes| bytes[..2 * q.len()].copy_from_slice(&bytes!(q)));
        }
        outputs
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
    if case.dtypes[1] == DType::E4m3Scaled {
        of_blocks(case, &mut numbers, random);
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

/// Draws most blocks of rows with scales again. Their magnitudes are those of one power of two, or of few
/// bits below the smallest normal f32, or zeros; few blocks keep numbers of all magnitudes, and NaN.
fn of_blocks(case: &AppendCase, numbers: &mut [u16], random: &mut Random) {
    let blocks = numbers.chunks_mut(case.head_dim).flat_map(|row| row.chunks_mut(E4m3Scaled::PER_SCALE));
    for (i, block) in blocks.enumerate().filter(|(i, _)| i % 7 != 0) {
        let power = 2f64.powi((random.bits() % 200) as i32 - 100);
        for bits in block {
            *bits = match i % 7 {
                1 => *bits & 0x8000,
                2 => *bits & 0x807f,
                // Quotients lie between two e4m3.
                3 => encode(case.dtypes[0], ((random.bits() % 897) as f64 - 448.0) * power),
                _ => encode(case.dtypes[0], random.normal() * power),
            };
        }
    }
}

/// Adds an output with this content between its guards, and returns its address behind the first guard.
fn old(binder: &mut Binder<'_>, name: &str, content: impl FnOnce() -> Vec<u8>) -> u64 {
    let guard = [OLD; GUARD];
    binder.output(name, || [&guard[..], &content(), &guard].concat()) + GUARD as u64
}

impl Work for AppendMemory {
    fn request<'a>(&'a self, binder: &mut Binder<'_>, _: LaunchOptions<'a>) -> AnyRequest<'a> {
        let (AppendCase { lies, heads, head_dim, tokens, wide, .. }, round) = (self.case, binder.round());
        let view = |address, heads: usize| {
            let shape = [1, tokens[0] + tokens[1], heads, head_dim];
            TensorView::bshd(address, shape.iter().product::<usize>() as u64, self.case.dtypes[0], shape)
        };
        let [k, v] = [("k", 0), ("v", 1)]
            .map(|(name, which)| view(binder.input(name, || bytes!(self.rows[which])), heads));
        let slots = binder.changing("slots", || integers(&self.slots[round], wide));
        let slots = if wide { Slots::i64 } else { Slots::i32 }(slots, tokens[0] as u64);
        let pages = self.pages(binder);
        let append = match lies {
            Lies::Latent(_) => Append::latent(k, pages, slots),
            _ => Append::new(k, v, pages, slots),
        };
        let Some(turn) = &self.rotary else { return AnyRequest::Append(append) };
        let rotary = turn.table.request(&turn.positions[round], binder);
        let Some(heads) = turn.of.query_heads else { return AnyRequest::Append(append.rotary(rotary)) };
        let (in_place, q) = (turn.of.in_place, || bytes!(turn.q));
        let before = || if in_place { q() } else { vec![OLD; 2 * turn.q.len()] };
        let rotated = view(old(binder, "rotated q", before), heads);
        let q = if in_place { rotated } else { view(binder.input("q", q), heads) };
        AnyRequest::Append(append.rotary(rotary.queries(q, rotated)))
    }

    fn rounds(&self) -> usize {
        self.slots.len()
    }

    fn rows(&self, _: &Written) -> Option<Rows> {
        None
    }

    fn judge(&self, _: Rule) -> Result<Judge<'_>, TensorError> {
        let expected = [0, 1].map(|round| self.expected(round));
        Ok(Box::new(move |round, written| {
            let pairs = written.outputs.iter().zip(&expected[round]);
            let differing =
                pairs.map(|(got, (_, want))| got.iter().zip(want).filter(|(a, b)| a != b).count());
            match differing.sum::<usize>() {
                0 => Judgement::default(),
                count => Judgement::failed(format_args!("{count} bytes differ from the reference")),
            }
        }))
    }
}
