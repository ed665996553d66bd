//! `ferroflash_merge`: merges partial states of disjoint keys.
use crate::args::{Args, constant, copy, dtype, extent, reach, read, view};
use crate::call::{Status, borrow, call, invalid};
use crate::context::{Context, enqueue};
use crate::structs::{MergeArgs, StateArgs};
use ferroflash::Error;
use ferroflash::request::{LseUnit, LseView, Merge, Sinks, State};
use std::ffi::c_void;

/// Maximum number of states per call. The library treats a larger number as a mistake of the caller.
const MOST: u64 = 1 << 16;

/// The smallest valid size of a state.
const STATE_LEAST: usize = StateArgs::LEAST;

impl MergeArgs {
    /// Converts the struct to a request of the Rust library, and calls `f` with it. Checks only the rules
    /// that the request's types cannot express.
    ///
    /// # Safety
    /// - `states` is null or points to `count` states.
    unsafe fn merge<R>(&self, f: impl FnOnce(&Merge<'_>) -> Result<R, Error>) -> Result<R, Error> {
        let [batch, rows] = [extent("batch", self.batch)?, extent("seqlen", self.seqlen)?];
        let [heads, head_dim] = [extent("heads", self.heads)?, extent("head_dim", self.head_dim)?];
        let dtypes = [dtype("states_dtype", self.states_dtype)?, dtype("dtype", self.dtype)?];
        let shape = [batch, rows, heads, head_dim];
        let values = |address: u64, [by_batch, by_head, by_row]: [i64; 3], unit| {
            let shape = [batch, heads, rows];
            let elements = reach(&shape, &[by_batch, by_head, by_row]);
            LseView::new(address, elements, shape, [by_batch, by_head]).row_stride(by_row).unit(unit)
        };
        let units = [unit("states_lse_unit", self.states_lse_unit)?, unit("lse_unit", self.lse_unit)?];
        if self.states.is_null() || self.count > MOST {
            let value = format_args!("{} at {:?}", self.count, self.states);
            return Err(invalid("states", value, format_args!("an array of 1 to {MOST} states")));
        }
        let size = self.state_size()?;
        let states = (0..self.count as usize)
            .map(|n| {
                // SAFETY: the pointer is not null, and points to one of the caller's states. Zero bytes are a
                // valid value of every field.
                let state = unsafe { copy(self.states.byte_add(n * size), size, "state")? };
                let o = view(state.o, dtypes[0], shape, state.o_strides);
                Ok(State::new(o, values(state.lse as u64, state.lse_strides, units[0])))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let mut merge = Merge::new(&states, view(self.o, dtypes[1], shape, self.o_strides));
        merge.lse = (!self.lse.is_null()).then(|| values(self.lse as u64, self.lse_strides, units[1]));
        let sinks = Sinks { address: self.sinks as u64, elements: heads as u64 };
        merge.sinks = (!self.sinks.is_null()).then_some(sinks);
        f(&merge)
    }

    /// Returns the number of bytes from one state to the next.
    fn state_size(&self) -> Result<usize, Error> {
        match usize::try_from(self.state_size) {
            Ok(0) => Ok(STATE_LEAST),
            Ok(size @ STATE_LEAST..=0x1_0000) if size.is_multiple_of(align_of::<StateArgs>()) => Ok(size),
            _ => {
                let expected = "FERROFLASH_MERGE_INIT sets it to sizeof(ferroflash_state_t)";
                Err(invalid("merge.state_size", self.state_size, expected))
            }
        }
    }
}

/// Returns the unit of an LSE for a `FERROFLASH_LSE_` value.
fn unit(what: &'static str, value: i32) -> Result<LseUnit, Error> {
    let expected = "it must be FERROFLASH_LSE_NATURAL or FERROFLASH_LSE_BASE_TWO";
    constant(what, value, &[LseUnit::Natural, LseUnit::Two], expected)
}

/// Merges partial states.
///
/// # Safety
/// - `context` is null or a live context; `merge` is null or a struct with the number of bytes that its size
///   field states; its `states` is null or points to `count` structs.
/// - `stream` is a stream of the CUDA context, or null.
/// - Every tensor is device memory of the CUDA context, as far as its strides reach, until the launch has
///   run. Until then, other work writes none of the inputs, and does not touch the outputs, except in the
///   order of this stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroflash_merge(
    context: *const Context,
    merge: *const MergeArgs,
    stream: *mut c_void,
) -> Status {
    call(|| {
        // SAFETY: the caller promises that both are null or valid.
        let (context, args) = unsafe { (borrow("context", context)?, read(merge)?) };
        // SAFETY: the caller promises valid states, memory and stream.
        unsafe { args.merge(|merge| enqueue(context, merge, stream)) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::{Capabilities, plan};

    #[test]
    fn what_c_writes_is_what_is_asked_for() {
        let state = |n: usize| StateArgs {
            o: (n << 30) as *const c_void,
            lse: ((n << 30) + (1 << 20)) as *const f32,
            o_strides: [5 * 128, 128, 64, 1],
            lse_strides: [10, 1, 2],
        };
        let states = [state(1), state(2)];
        // SAFETY: zero bytes are a valid value of every field.
        let none: MergeArgs = unsafe { std::mem::zeroed() };
        let args = MergeArgs {
            size: size_of::<MergeArgs>() as u64,
            states: states.as_ptr(),
            count: 2,
            o: (9usize << 30) as *mut c_void,
            batch: 3,
            seqlen: 5,
            heads: 2,
            head_dim: 64,
            o_strides: states[0].o_strides,
            ..none
        };
        let card = Capabilities::profile("l4").expect("known");
        let with = |args: MergeArgs, check: fn(&Merge<'_>)| {
            // SAFETY: the array has this number of states.
            unsafe {
                args.merge(|merge| {
                    check(merge);
                    plan(merge, card).map(|plan| plan.contract().symbol)
                })
            }
        };
        let plain = with(args, |merge| {
            assert_eq!((merge.o.shape, merge.o.elements), ([3, 5, 2, 64], 3 * 5 * 128));
            assert_eq!((merge.states[1].lse.row_stride, merge.states[1].lse.elements), (2, 30));
            assert_eq!((merge.lse, merge.sinks), (None, None));
        });
        assert_eq!(plain, Ok("merge_f16"));
        let floats = MergeArgs {
            states_dtype: 3,
            dtype: 1,
            lse: (10usize << 30) as *mut f32,
            lse_strides: [10, 5, 1],
            lse_unit: 1,
            sinks: (11usize << 30) as *const f32,
            ..args
        };
        // States of a newer header, with fields that this library does not know.
        let mut grown = [[0u64; STATE_LEAST / 8 + 1]; 2];
        for (grown, state) in grown.iter_mut().zip(&states) {
            // SAFETY: the memory has room for one state.
            unsafe { grown.as_mut_ptr().cast::<StateArgs>().write(*state) };
        }
        let newer = MergeArgs { states: grown.as_ptr().cast(), state_size: STATE_LEAST as u64 + 8, ..args };
        let second = |merge: &Merge<'_>| assert_eq!(merge.states[1].o.address, 2 << 30);
        assert_eq!(with(newer, second), Ok("merge_f16"));
        assert_eq!(with(MergeArgs { state_size: STATE_LEAST as u64, ..args }, second), Ok("merge_f16"));
        grown[1][STATE_LEAST / 8] = 7;
        let newer = MergeArgs { states: grown.as_ptr().cast(), ..newer };
        let unknown = with(newer, |_| {}).expect_err("an unknown field").to_string();
        assert!(unknown.contains("ferroflash_state_t of 80 bytes"), "{unknown}");
        let floats = with(floats, |merge| {
            assert_eq!(merge.lse.map(|lse| (lse.unit, lse.elements)), Some((LseUnit::Two, 30)));
            assert_eq!(merge.sinks, Some(Sinks { address: 11 << 30, elements: 2 }));
        });
        assert_eq!(floats, Ok("merge_f32_bf16"));
        for (wrong, says) in [
            (MergeArgs { states: std::ptr::null(), ..args }, "states: 2 at 0x0"),
            (MergeArgs { count: u64::MAX, ..args }, "states: 18446744073709551615"),
            (MergeArgs { count: 0, ..args }, "states: 0"),
            (MergeArgs { lse_unit: 2, ..args }, "lse_unit: 2"),
            (MergeArgs { state_size: 64, ..args }, "merge.state_size: 64"),
            (MergeArgs { state_size: 73, ..args }, "merge.state_size: 73"),
            (MergeArgs { state_size: u64::MAX, ..args }, "merge.state_size: 18446744073709551615"),
        ] {
            let message = with(wrong, |_| {}).expect_err(says).to_string();
            assert!(message.contains(says), "{message}");
        }
    }
}
