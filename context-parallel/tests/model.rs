//! The predictions of docs/several-gpus.md are those of the example `predict`, whose bytes are those that the
//! forms send.
#[path = "../examples/predict/model.rs"]
#[allow(dead_code, reason = "the example's report needs more of the model")]
mod model;
#[path = "../examples/predict/tables.rs"]
mod tables;

use context_parallel::{Chunks, Comm, Form, Rows, Transfer, Transport};
use ferroflash::driver::{SimDriver, SimStream};
use ferroflash::request::{AttentionRequest, LseView, Mask, Scratch, TensorView};
use ferroflash::{Attention, DType, Error};
use model::{Machine, Pass, Shape};
use std::cell::Cell;

/// `BLESS=1 cargo test -p ferroflash-context-parallel --test model` writes the tables.
#[test]
fn the_documents_tables_are_the_models() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/several-gpus.md");
    let mut text = std::fs::read_to_string(path).expect("the document");
    for (name, table) in tables::all() {
        let marks = [format!("<!-- predicted: {name} -->\n"), format!("\n<!-- {name}: end -->")];
        let start = text.find(&marks[0]).unwrap_or_else(|| panic!("{name} has no place")) + marks[0].len();
        let end = start + text[start..].find(&marks[1]).unwrap_or_else(|| panic!("{name} has no end"));
        if std::env::var_os("BLESS").is_some() {
            text.replace_range(start..end, &table);
        } else {
            assert_eq!(text[start..end], table, "{name}: bless the tables, and read the text beside them");
        }
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, text).expect("the document");
    }
}

/// A transport that ends at the end of its first exchange, and remembers the bytes of others until then.
struct Counter {
    rank: usize,
    ranks: usize,
    sent: Cell<u64>,
}

impl Transport<SimDriver> for Counter {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    unsafe fn start(&self, _: &SimDriver, _: &SimStream, all: &[Transfer]) -> Result<(), Error> {
        let bytes = |transfer: &Transfer| match *transfer {
            Transfer::Send { to, bytes, .. } if to != self.rank => bytes,
            _ => 0,
        };
        self.sent.set(self.sent.get() + all.iter().map(bytes).sum::<u64>());
        Ok(())
    }

    unsafe fn finish(&self, _: &SimDriver, _: &SimStream) -> Result<(), Error> {
        Err(Error::driver("finish", None, "counted"))
    }

    unsafe fn clear(&self, _: &SimDriver, _: &SimStream, _: u64, _: u64) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn write(&self, _: &SimDriver, _: &SimStream, _: u64, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn copy(&self, _: &SimDriver, _: &SimStream, _: Rows, _: Rows, _: [u64; 2]) -> Result<(), Error> {
        Ok(())
    }
}

/// The first exchange of a gather sends K and V to all others: the model's bytes of a forward pass.
#[test]
fn a_gather_sends_the_models_bytes() {
    let attention = Attention::new(SimDriver::new("h200").expect("a card"));
    for (ranks, rows) in [(2, 64), (4, 100), (8, 16)] {
        let chunks = Chunks::zigzag(ranks * rows, ranks).expect("chunks");
        let transport = Counter { rank: 1, ranks, sent: Cell::new(0) };
        let comm = Comm::new(&attention, &transport, &SimStream);
        let view = |at: u64, heads| {
            let shape = [1, rows, heads, 128];
            TensorView::bshd(at << 40, shape.iter().product::<usize>() as u64, DType::Bf16, shape)
        };
        let lse = LseView::contiguous(9 << 40, (32 * rows) as u64, [1, 32, rows]);
        let request = AttentionRequest::dense(view(1, 32), view(2, 8), view(3, 8), view(4, 32));
        let request = request.mask(Mask::Causal).lse(lse);
        let bytes = Form::Gather.attention_workspace(&comm, &chunks, &request).expect("bytes");
        let request = request.scratch(Scratch::workspace(10 << 40, bytes));
        // SAFETY: the transport sends nothing, and no kernel runs.
        let outcome = unsafe { Form::Gather.attention(&comm, &chunks, &request) };
        assert!(outcome.expect_err("counted").to_string().contains("counted"));
        let shape = Shape { heads: [32.0, 8.0], columns: 128.0 };
        let expected = model::sent(Form::Gather, Pass::Forward, &shape, ranks as f64, rows as f64);
        assert_eq!(expected, Some(transport.sent.get() as f64), "{ranks} ranks");
    }
}

/// Longer sequences and faster links have larger shares, and one GPU has the ideal.
#[test]
fn shares_grow_with_lengths_and_links() {
    let shape = Shape { heads: [32.0, 8.0], columns: 128.0 };
    for form in Form::ALL {
        for pass in [Pass::Forward, Pass::Backward] {
            let share = |ranks, link, positions| {
                let machine = Machine { ranks, link, ..Machine::H200 };
                model::share(form, &[pass], &shape, &machine, positions).expect("enough heads")
            };
            assert!((share(1.0, 1e9, 64.0) - 1.0).abs() < 1e-9, "{form:?}, {pass:?}");
            for positions in [1e3, 1e4, 1e5] {
                assert!(
                    share(2.0, 40e9, 2.0 * positions) > share(2.0, 40e9, positions),
                    "{form:?}, {pass:?}"
                );
                assert!(share(2.0, 80e9, positions) >= share(2.0, 40e9, positions), "{form:?}, {pass:?}");
            }
        }
    }
}
