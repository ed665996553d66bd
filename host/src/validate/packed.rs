//! Checks of packed sequences. Where they begin the host cannot check: kernels keep it in bounds.
use super::{Names, Part, cache::index, names};
use crate::{Decode, Error, Forward};

names!(
    CU_SEQLENS_Q "packed.cu_seqlens_q" CU_SEQLENS_K "packed.cu_seqlens_k" SEQUSED_K "packed.seqused_k"
);

/// Checks the integers of a request whose problem has been checked: there are as many as sequences need.
pub(crate) fn packed(f: &Forward<'_>) -> Result<[Part; 3], Error> {
    let batch = f.packed.map_or(0, |packed| packed.batch as u64);
    let part = |name: &'static Names, integers, needed| {
        let footprint = |integers| index(name, &integers, needed, "by packed.batch");
        Ok((name, Option::map(integers, footprint).transpose()?))
    };
    Ok([
        part(&CU_SEQLENS_Q, f.packed.map(|packed| packed.cu_seqlens_q), batch + 1)?,
        part(&CU_SEQLENS_K, f.packed.map(|packed| packed.cu_seqlens_k), batch + 1)?,
        part(&SEQUSED_K, f.packed.and_then(|packed| packed.seqused_k), batch)?,
    ])
}

/// The same for queries on a cache.
pub(crate) fn queries(d: &Decode<'_>) -> Result<Part, Error> {
    let Some(packed) = d.packed else { return Ok((&CU_SEQLENS_Q, None)) };
    let footprint = index(&CU_SEQLENS_Q, &packed.cu_seqlens_q, packed.batch as u64 + 1, "by packed.batch")?;
    Ok((&CU_SEQLENS_Q, Some(footprint)))
}
