//! Compares the results of all ranks with those of one GPU.
use crate::rank::{HEADS, Rank, compare};
use crate::sequence::{OF_KEYS, Tensors};
use context_parallel::{Chunks, Comm, Form, Transport};
use ferroflash::Error;
use ferroflash::driver::Harness;
use ferroflash::request::{AttentionBackward, LseView, Mask, TensorView};
use std::ops::Range;

/// Sequences, and how the ranks have them.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    lengths: &'static [usize],
    is_zigzag: bool,
    heads: [usize; 2],
    mask: Mask,
}

const CAUSAL: Case =
    Case { name: "causal", lengths: &[3001], is_zigzag: true, heads: HEADS, mask: Mask::Causal };

const fn window(left: u32, right: u32) -> Mask {
    Mask::Window { left: Some(left), right: Some(right) }
}

const CASES: [Case; 8] = [
    CAUSAL,
    Case { name: "one position", lengths: &[1], ..CAUSAL },
    Case { name: "as many key heads as query heads", lengths: &[1026], heads: [8, 8], ..CAUSAL },
    Case { name: "full", lengths: &[1999], is_zigzag: false, mask: Mask::Full, ..CAUSAL },
    Case { name: "a window", mask: window(700, 0), ..CAUSAL },
    Case { name: "a window of a contiguous part", is_zigzag: false, mask: window(1800, 0), ..CAUSAL },
    Case {
        name: "a window to both sides",
        lengths: &[1500],
        is_zigzag: false,
        mask: window(100, 900),
        ..CAUSAL
    },
    Case { name: "sequences", lengths: &[1200, 1, 0, 77, 640], ..CAUSAL },
];

/// Compares the first cases of a form.
///
/// # Errors
/// Returns the last difference. All ranks run all cases, also if one of them has found a difference.
pub fn form(rank: &Rank<'_>, form: Form, most: usize) -> Result<(), Error> {
    let mut outcome = Ok(());
    for case in CASES.iter().take(most) {
        match case.check(rank, form) {
            Err(error @ Error::Driver { call: "check", .. }) => {
                println!("{{\"difference\": \"{error}\", \"rank\": {}}}", rank.nccl.rank());
                outcome = Err(error);
            }
            other => other?,
        }
    }
    outcome
}

/// The outputs by name, and their places among the tensors.
const OUTPUTS: [(&str, usize); 4] = [("o", 3), ("dq", 5), ("dk", 6), ("dv", 7)];

/// The largest difference of an LSE: kernels may add probabilities that are rounded to bf16. Twice the keys,
/// or half of them, change it by 0.7.
const LSE: f32 = 5e-3;

impl Case {
    /// Compares the ranks' results with those of each sequence on the own GPU, and with their own repetition.
    fn check(&self, rank: &Rank<'_>, form: Form) -> Result<(), Error> {
        let (positions, ranks) = (self.lengths.iter().sum(), rank.nccl.ranks());
        let chunks = match self.is_zigzag {
            true => Chunks::packed(self.lengths, ranks)?,
            false => Chunks::contiguous(positions, ranks)?.sequences(self.lengths)?,
        };
        let own = chunks.of(rank.nccl.rank());
        let of = Tensors::new(rank, self.heads, self.mask, own)?;
        let comm = Comm::new(rank.attention, rank.nccl, rank.stream);
        let bytes = form.attention_workspace(&comm, &chunks, &of.forward())?;
        let (_forward, scratch) = rank.workspace(bytes)?;
        let bytes = form.backward_workspace(&comm, &chunks, &of.backward())?;
        let (_backward, of_backward) = rank.workspace(bytes)?;
        let run = || {
            // SAFETY: the tensors live until the stream has been waited for, and nothing else uses them.
            unsafe {
                form.attention(&comm, &chunks, &of.forward().scratch(scratch))?;
                form.backward(&comm, &chunks, &of.backward().scratch(of_backward))?;
            }
            rank.wait()?;
            let read = |(_, index): &(&str, usize)| rank.read(&of.all[*index]);
            let mut all = OUTPUTS.iter().map(read).collect::<Result<Vec<_>, Error>>()?;
            all.push(of.lse(rank)?);
            Ok::<_, Error>(all)
        };
        let (found, again) = (run()?, run()?);
        let name = format!("{form:?}, {}", self.name);
        let bits = |all: &[Vec<f32>]| all.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        if bits(&found) != bits(&again) {
            return Err(Error::driver("check", None, format!("{name}: repeated calls differ")));
        }
        let whole = Tensors::new(rank, self.heads, self.mask, std::slice::from_ref(&(0..positions)))?;
        self.alone(rank, &whole)?;
        let mut differences = Vec::new();
        for ((output, index), found) in OUTPUTS.into_iter().zip(&found) {
            let width = self.heads[usize::from(OF_KEYS[index])] * crate::rank::HEAD_DIM;
            let all = rank.read(&whole.all[index])?;
            let rows = own.iter().cloned().flatten();
            let expected: Vec<f32> =
                rows.flat_map(|row| &all[row * width..(row + 1) * width]).copied().collect();
            let worst = compare(&format!("{name}: {output}"), found, &expected)?;
            differences.push(format!("\"{output}\": {worst:.5}"));
        }
        let all = whole.lse(rank)?;
        let rows = |head: usize| own.iter().cloned().flatten().map(move |row| head * positions + row);
        let expected = (0..self.heads[0]).flat_map(rows).map(|at| all[at]);
        let worst = found[4].iter().zip(expected).map(|(a, b)| (a - b).abs());
        let worst = worst.fold(0f32, |a, x| if x >= a || x.is_nan() { x } else { a });
        if worst.is_nan() || worst > LSE {
            return Err(Error::driver("check", None, format!("{name}: the LSE differs by {worst}")));
        }
        println!(
            "{{\"check\": \"{form:?}\", \"case\": \"{}\", \"lengths\": {:?}, \"rank\": {}, {}, \
             \"lse\": {worst:e}}}",
            self.name,
            self.lengths,
            rank.nccl.rank(),
            differences.join(", ")
        );
        Ok(())
    }

    /// Computes each sequence on the own GPU.
    fn alone(&self, rank: &Rank<'_>, of: &Tensors) -> Result<(), Error> {
        let mut end = 0;
        for length in self.lengths.iter().filter(|length| **length > 0) {
            let rows = end..end + length;
            end = rows.end;
            let whole = of.backward();
            let mut forward = whole.forward;
            (forward.q, forward.o) = (part(forward.q, &rows), part(forward.o, &rows));
            let [_, k, v, ..] = of.all.each_ref().map(|tensor| part(tensor.view, &rows));
            forward.kv = ferroflash::request::KeysValues::Tensors { k, v };
            forward.lse = Some(lse_part(of.lse, &rows));
            let [d_o, dq, dk, dv] = [whole.d_o, whole.dq, whole.dk, whole.dv].map(|view| part(view, &rows));
            let backward = AttentionBackward::new(forward, d_o, dq, dk, dv);
            let bytes = rank.attention.plan(&backward)?.scratch_bytes().workspace;
            let (_memory, scratch) = rank.workspace(bytes)?;
            rank.alone(&forward)?;
            rank.alone(&backward.scratch(scratch))?;
            rank.wait()?;
        }
        Ok(())
    }
}

impl Tensors {
    /// Returns the LSE, `[heads, rows]`.
    fn lse(&self, rank: &Rank<'_>) -> Result<Vec<f32>, Error> {
        let mut bytes = vec![0; self.lse.elements as usize * 4];
        rank.driver().download(&self.lse_memory, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect())
    }
}

/// Returns some rows of a tensor.
fn part(view: TensorView, rows: &Range<usize>) -> TensorView {
    let [batch, _, heads, columns] = view.shape;
    let first = (rows.start * heads * columns) as u64;
    let shape = [batch, rows.len(), heads, columns];
    TensorView::bshd(view.address + first * 2, view.elements - first, view.dtype, shape)
}

/// Returns some rows of an LSE.
fn lse_part(view: LseView, rows: &Range<usize>) -> LseView {
    let first = rows.start as u64;
    let shape = [view.shape[0], view.shape[1], rows.len()];
    LseView { address: view.address + first * 4, elements: view.elements - first, shape, ..view }
}
