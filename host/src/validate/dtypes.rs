//! Checks of the dtypes of a problem's tensors. One table says which dtypes go together.
use super::{K, Names, O, state};
use crate::DType::{self, Bf16, E4m3, E4m3Scaled, F16, Int8};
use crate::{Error, Problem};

/// The dtypes that go with a dtype of Q.
struct Row {
    q: DType,
    /// Of K and V in tensors.
    tensors: &'static [DType],
    /// Of K and V in a KV cache.
    cache: &'static [DType],
    /// Of a latent cache.
    latent: &'static [DType],
    o: &'static [DType],
    gradients: &'static [DType],
}

const TABLE: &[Row] = &[
    half(&[F16], &[F16, E4m3, Int8], &[F16, E4m3]),
    half(&[Bf16], &[Bf16, E4m3, Int8], &[Bf16, E4m3, E4m3Scaled]),
    Row { q: E4m3, tensors: &[E4m3], cache: &[], latent: &[], o: &[F16, Bf16], gradients: &[E4m3] },
];

const QUERIES: &str = "queries on a KV cache are f16 or bf16: convert q";

/// Returns the row of a 16-bit dtype of Q.
const fn half(own: &'static [DType; 1], cache: &'static [DType], latent: &'static [DType]) -> Row {
    Row { q: own[0], tensors: own, cache, latent, o: own, gradients: own }
}

/// Checks that the table has the problem's dtypes.
pub(super) fn dtypes(p: &Problem) -> Result<(), Error> {
    let (q, kv) = (p.dtype.name(), p.kv_dtype.name());
    let Some(row) = TABLE.iter().find(|row| row.q == p.dtype) else {
        let reason = "q, k, v and o must be f16 or bf16, or q, k and v e4m3; only KV caches are int8, and \
                      only partial states are f32";
        return Err(Error::unsupported(format_args!("dtype {q}"), reason));
    };
    match &p.cache {
        None if !row.tensors.contains(&p.kv_dtype) => return Err(unlike(&K, p.kv_dtype, p.dtype)),
        Some(cache) if !cache.latent && !row.cache.contains(&p.kv_dtype) => {
            let feature = format_args!("queries of {q} on a cache of {kv}");
            let reason = match row.cache {
                [] => QUERIES,
                _ => "a KV cache must have the queries' dtype, e4m3 or int8",
            };
            return Err(Error::unsupported(feature, reason));
        }
        Some(cache) if cache.latent && row.latent.is_empty() => {
            return Err(Error::unsupported(format_args!("queries of {q} on a latent cache"), QUERIES));
        }
        Some(cache) if cache.latent && !row.latent.contains(&p.kv_dtype) => {
            let latent: Vec<_> = row.latent.iter().map(|dtype| dtype.name()).collect();
            let remedy = match p.kv_dtype {
                DType::E4m3Scaled => "q to bf16",
                _ => "the cache",
            };
            let latent = latent.join(" or ");
            let reason =
                format_args!("with queries of {q}, a latent cache must be {latent}; convert {remedy}");
            return Err(Error::unsupported(format_args!("dtype {kv} on a latent cache"), reason));
        }
        _ => {}
    }
    if p.leaves_state() && row.o == [p.dtype] {
        state::problem(p)?;
    } else if !row.o.contains(&p.o_dtype) {
        if p.dtype == E4m3 {
            let expected = "the output of e4m3 tensors must be bf16 or f16";
            return Err(Error::invalid(O.dtype, p.o_dtype.name(), expected));
        }
        return Err(unlike(&O, p.o_dtype, p.dtype));
    }
    if !row.gradients.contains(&p.grad_dtype) {
        let expected = format_args!("gradients must have the dtype of q, {q}");
        return Err(Error::invalid("grad_dtype", p.grad_dtype.name(), expected));
    }
    Ok(())
}

/// Returns the error of a tensor whose dtype must be Q's.
pub(super) fn unlike(name: &Names, dtype: DType, q: DType) -> Error {
    let expected = format_args!("all tensors must have the dtype of q, {}", q.name());
    Error::invalid(name.dtype, dtype.name(), expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_outside_of_the_table_are_refused_by_name() {
        let p = Problem::new(F16, 1, 16, 1, 64);
        let others = [
            (p.kv_dtype(E4m3), "k.dtype"),
            (p.o_dtype(Bf16), "o.dtype"),
            (p.o_dtype(DType::F32).sinks(true), "o.dtype f32 with sinks"),
            (p.grad_dtype(Bf16), "grad_dtype"),
            (p.dtype(Int8), "dtype int8"),
        ];
        for (other, name) in others {
            let error = dtypes(&other).expect_err("refused").to_string();
            assert!(error.contains(name), "{error}");
        }
        let eight = p.dtype(E4m3);
        let error = dtypes(&eight).expect_err("refused").to_string();
        assert!(error.contains("o.dtype"), "{error}");
        for valid in [p.dtype(Bf16), p.o_dtype(DType::F32), eight.o_dtype(Bf16), eight.o_dtype(F16)] {
            assert_eq!(dtypes(&valid), Ok(()));
        }
    }
}
