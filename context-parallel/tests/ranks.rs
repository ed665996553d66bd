//! Attention on several ranks, which are threads with simulated cards, against attention of the whole
//! sequence in f64.
#[path = "ranks/overlap.rs"]
mod overlap;
#[path = "ranks/random.rs"]
mod random;
#[path = "ranks/spoiled.rs"]
mod spoiled;
#[path = "ranks/world.rs"]
mod world;
#[path = "ranks/wrong.rs"]
mod wrong;

use context_parallel::Form;
use ferroflash::DType;
use ferroflash::request::Mask;
use world::{Case, all, judge};

fn cases() -> [Case; 13] {
    let of = Case::new;
    let window = |left, right| Mask::Window { left: Some(left), right };
    [
        of("two ranks"),
        Case { card: "h200", head_dim: 128, ..of("Hopper's kernels").packed(&[100], 2) },
        Case { batch: 2, heads: [6, 3], ..of("three ranks, two batches").packed(&[85], 3) },
        Case { mask: Mask::Full, ..of("full, contiguous").contiguous(&[50], 2) },
        Case { mask: window(20, Some(0)), ..of("a window, four ranks").packed(&[97], 4) },
        Case { mask: window(5, Some(9)), ..of("a window to both sides").contiguous(&[64], 2) },
        Case { heads: [3, 1], ..of("a rank without keys, one key head").packed(&[2], 3) },
        Case { heads: [2, 2], ..of("one rank").packed(&[40], 1) },
        of("varlen").packed(&[33, 1, 0, 50], 2),
        Case { mask: window(12, Some(3)), ..of("varlen, a window, contiguous").contiguous(&[9, 60], 2) },
        Case { card: "h200", head_dim: 128, ..of("many sequences").packed(&[33, 1, 0, 40, 7, 12], 2) },
        Case { heads: [4, 1], ..of("varlen, four ranks, one key head").packed(&[3, 70], 4) },
        Case {
            dtype: DType::Bf16,
            softcap: 20.0,
            has_d_lse: false,
            ..of("a softcap, bf16").packed(&[70], 2)
        },
    ]
}

fn check(form: Form) {
    for case in cases() {
        let results = all(&case, form).unwrap_or_else(|error| panic!("{}, {form:?}: {error}", case.name));
        judge(&case, form, &results);
    }
}

#[test]
fn a_ring_computes_all_sequences() {
    check(Form::Ring);
}

#[test]
fn a_gather_computes_all_sequences() {
    check(Form::Gather);
}

#[test]
fn an_exchange_of_heads_computes_all_sequences() {
    check(Form::Ulysses);
}
