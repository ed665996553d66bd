//! The rotation in a `ferroflash_append_t`.
use crate::args::{at_tokens, constant, dtype, extent, is_wide, view};
use crate::call::invalid;
use crate::structs::AppendArgs;
use ferroflash::Error;
use ferroflash::request::{Positions, Rotary, RotaryStyle, TensorView};
use std::ffi::c_void;

impl AppendArgs {
    /// Returns the rotation of an append of the keys `k`, or `None` if there are no cosines.
    pub(crate) fn rotary(&self, k: &TensorView) -> Result<Option<Rotary>, Error> {
        if self.reserved != 0 {
            return Err(invalid("reserved", self.reserved, "it must be 0"));
        }
        if self.rotary_cos.is_null() {
            return self.no_rotary();
        }
        let [rows, dims] =
            [extent("rotary_rows", self.rotary_rows)?, extent("rotary_dims", self.rotary_dims)?];
        let (dtype, shape) = (dtype("rotary_dtype", self.rotary_dtype)?, [1, rows, 1, dims / 2]);
        if dims % 2 == 1 {
            return Err(invalid("rotary_dims", dims, "it must be even"));
        }
        let table = |address| view(address, dtype, shape, [0, self.rotary_stride, 0, 1]);
        let expected = "it must be FERROFLASH_ROTARY_HALVES or _INTERLEAVED";
        let styles = [RotaryStyle::Halves, RotaryStyle::Interleaved];
        let style = constant("rotary_style", self.rotary_style, &styles, expected)?;
        let wide = is_wide("wide_positions", self.wide_positions)?;
        let positions = Positions { address: self.positions as u64, elements: k.shape[1] as u64, wide };
        let first = usize::try_from(self.rotary_first)
            .map_err(|_| invalid("rotary_first", self.rotary_first, "it must be 0 or more"))?;
        let rotary = Rotary::new(table(self.rotary_cos), table(self.rotary_sin), positions);
        let rotary = rotary.style(style).first_column(first);
        if self.q.is_null() {
            return without_queries(self.rotated_q, "q").map(|()| Some(rotary));
        }
        let shape = [k.shape[1], extent("heads_q", self.heads_q)?, k.shape[3]];
        let q = at_tokens(self.q, k.dtype, shape, self.q_strides);
        let rotated = at_tokens(self.rotated_q.cast_const(), k.dtype, shape, self.rotated_q_strides);
        Ok(Some(rotary.queries(q, rotated)))
    }

    /// Refuses fields that mean nothing without cosines.
    fn no_rotary(&self) -> Result<Option<Rotary>, Error> {
        let fields = [("rotary_sin", self.rotary_sin), ("positions", self.positions), ("q", self.q)];
        match fields.into_iter().find(|(_, at)| !at.is_null()) {
            Some((name, at)) => {
                let expected =
                    "it must be NULL if rotary_cos is NULL: an append without cosines rotates nothing";
                Err(invalid(name, format_args!("{at:p}"), expected))
            }
            None => without_queries(self.rotated_q, "rotary_cos").map(|()| None),
        }
    }
}

/// Refuses rotated queries if the field `needed` is NULL.
fn without_queries(rotated_q: *mut c_void, needed: &str) -> Result<(), Error> {
    if rotated_q.is_null() {
        return Ok(());
    }
    let expected = format_args!("it must be NULL if {needed} is NULL: the append rotates no queries");
    Err(invalid("rotated_q", format_args!("{rotated_q:p}"), expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{append, at, check_refusals, chosen, valid};
    use ferroflash::DType;

    #[test]
    fn what_c_writes_is_what_is_asked_for() {
        let rotated = AppendArgs {
            rotary_cos: at(6),
            rotary_sin: at(7),
            positions: at(8),
            q: at(9),
            rotated_q: at(10),
            rotary_rows: 500,
            rotary_dims: 32,
            rotary_stride: 16,
            rotary_first: 8,
            heads_q: 4,
            q_strides: [256, 64],
            rotated_q_strides: [512, 64],
            rotary_dtype: 3,
            rotary_style: 1,
            wide_positions: 1,
            ..append()
        };
        assert_eq!(chosen(&rotated, "l4"), "append_rotary_f16");
        let rotary = valid(&rotated).rotary.expect("rotates");
        assert_eq!((rotary.style, rotary.first_column, rotary.dims()), (RotaryStyle::Interleaved, 8, 32));
        assert_eq!((rotary.cos.shape, rotary.sin.dtype), ([1, 500, 1, 16], DType::F32));
        assert_eq!(rotary.positions, Positions::i64(8 << 40, 10));
        let queries = rotary.queries.expect("queries");
        assert_eq!((queries.q.shape, queries.q.elements), ([1, 10, 4, 64], 2560));
        assert_eq!(queries.rotated.strides, [0, 512, 64, 1]);
        let alone = AppendArgs { q: std::ptr::null(), rotated_q: std::ptr::null_mut(), ..rotated };
        assert_eq!(valid(&alone).rotary.expect("rotates").queries, None);
        check_refusals(&[
            (AppendArgs { rotary_cos: std::ptr::null(), ..rotated }, "rotary_sin: 0x"),
            (AppendArgs { rotary_style: 2, ..rotated }, "rotary_style: 2"),
            (AppendArgs { rotary_dtype: 9, ..rotated }, "rotary_dtype: 9"),
            (AppendArgs { rotary_dims: 33, ..rotated }, "rotary_dims: 33"),
            (AppendArgs { rotary_rows: -1, ..rotated }, "rotary_rows: -1"),
            (AppendArgs { rotary_first: -8, ..rotated }, "rotary_first: -8"),
            (AppendArgs { wide_positions: 2, ..rotated }, "wide_positions: 2"),
            (AppendArgs { reserved: 1, ..rotated }, "reserved: 1"),
            (AppendArgs { heads_q: -1, ..rotated }, "heads_q: -1"),
            (AppendArgs { q: std::ptr::null(), ..rotated }, "rotated_q: 0x"),
            (AppendArgs { rotated_q: at(10), ..append() }, "rotated_q: 0x"),
        ]);
    }
}
