//! `ferroflash_merge`: merges partial states of disjoint keys.
use crate::args::{Args, Ask, constant, copy, dtype, extent, present, rows_of, view};
use crate::call::invalid;
use crate::structs::{MergeArgs, StateArgs};
use ferroflash::Error;
use ferroflash::plan::OwnedMerge;
use ferroflash::request::{LseUnit, Merge, Sinks, State};

/// Maximum number of states per call. The library treats a larger number as a mistake of the caller.
const MOST: u64 = 1 << 16;

/// The smallest valid size of a state.
const STATE_LEAST: usize = StateArgs::LEAST;

impl Ask for MergeArgs {
    type Request<'a> = OwnedMerge;

    unsafe fn request<'a>(&self) -> Result<Self::Request<'a>, Error> {
        let [batch, rows] = [extent("batch", self.batch)?, extent("seqlen", self.seqlen)?];
        let [heads, head_dim] = [extent("heads", self.heads)?, extent("head_dim", self.head_dim)?];
        let dtypes = [dtype("states_dtype", self.states_dtype)?, dtype("dtype", self.dtype)?];
        let shape = [batch, rows, heads, head_dim];
        let lse = |address, strides, unit| rows_of(address, [batch, heads, rows], strides).unit(unit);
        let units = [unit("states_lse_unit", self.states_lse_unit)?, unit("lse_unit", self.lse_unit)?];
        if self.states.is_null() || self.count > MOST {
            let value = format_args!("{} at {:?}", self.count, self.states);
            return Err(invalid("states", value, format_args!("an array of 1 to {MOST} states")));
        }
        let size = self.state_size()?;
        let states = (0..self.count as usize)
            .map(|n| {
                // SAFETY: the pointer is not null, and points to one of the caller's states.
                let state = unsafe { copy(self.states.byte_add(n * size), size)? };
                let o = view(state.o, dtypes[0], shape, state.o_strides);
                Ok(State::new(o, lse(state.lse as u64, state.lse_strides, units[0])))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let mut merge = Merge::new(&[], view(self.o, dtypes[1], shape, self.o_strides));
        merge.lse = present(self.lse).map(|address| lse(address, self.lse_strides, units[1]));
        merge.sinks = present(self.sinks).map(|address| Sinks { address, elements: heads as u64 });
        Ok(OwnedMerge::new(states, merge))
    }
}

impl MergeArgs {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{at, check_refusals, chosen, planned, valid, zeros};

    #[test]
    fn what_c_writes_is_what_is_asked_for() {
        let state = |n: usize| StateArgs {
            o: at(n),
            lse: at(n + 2),
            o_strides: [5 * 128, 128, 64, 1],
            lse_strides: [10, 1, 2],
        };
        let states = [state(1), state(2)];
        let args = MergeArgs {
            states: states.as_ptr(),
            count: 2,
            o: at(9),
            batch: 3,
            seqlen: 5,
            heads: 2,
            head_dim: 64,
            o_strides: states[0].o_strides,
            ..zeros()
        };
        let owned = valid(&args);
        let merge = owned.merge();
        assert_eq!((merge.o.shape, merge.o.elements), ([3, 5, 2, 64], 3 * 5 * 128));
        assert_eq!((merge.states[1].lse.row_stride, merge.states[1].lse.elements), (2, 30));
        assert_eq!((merge.lse, merge.sinks), (None, None));
        assert_eq!(chosen(&args, "l4"), "merge_f16");
        // States of a newer header, with fields that this library does not know.
        let mut grown = [[0u64; STATE_LEAST / 8 + 1]; 2];
        for (grown, state) in grown.iter_mut().zip(&states) {
            // SAFETY: the memory has room for one state.
            unsafe { grown.as_mut_ptr().cast::<StateArgs>().write(*state) };
        }
        let newer = MergeArgs { states: grown.as_ptr().cast(), state_size: STATE_LEAST as u64 + 8, ..args };
        for args in [newer, MergeArgs { state_size: STATE_LEAST as u64, ..args }] {
            assert_eq!(valid(&args).merge().states[1].o.address, 2 << 40);
            assert_eq!(chosen(&args, "l4"), "merge_f16");
        }
        grown[1][STATE_LEAST / 8] = 7;
        let newer = MergeArgs { states: grown.as_ptr().cast(), ..newer };
        let unknown = planned(&newer, "l4").map(drop).expect_err("an unknown field").to_string();
        assert!(unknown.contains("ferroflash_state_t of 80 bytes"), "{unknown}");
        let floats = MergeArgs {
            states_dtype: 3,
            dtype: 1,
            lse: at(10),
            lse_strides: [10, 5, 1],
            lse_unit: 1,
            sinks: at(11),
            ..args
        };
        let owned = valid(&floats);
        assert_eq!(owned.merge().lse.map(|lse| (lse.unit, lse.elements)), Some((LseUnit::Two, 30)));
        assert_eq!(owned.merge().sinks, Some(Sinks { address: 11 << 40, elements: 2 }));
        assert_eq!(chosen(&floats, "l4"), "merge_f32_bf16");
        check_refusals(&[
            (MergeArgs { states: std::ptr::null(), ..args }, "states: 2 at 0x0"),
            (MergeArgs { count: u64::MAX, ..args }, "states: 18446744073709551615"),
            (MergeArgs { count: 0, ..args }, "states: 0"),
            (MergeArgs { lse_unit: 2, ..args }, "lse_unit: 2"),
            (MergeArgs { state_size: 64, ..args }, "merge.state_size: 64"),
            (MergeArgs { state_size: 73, ..args }, "merge.state_size: 73"),
            (MergeArgs { state_size: u64::MAX, ..args }, "merge.state_size: 18446744073709551615"),
        ]);
    }
}
