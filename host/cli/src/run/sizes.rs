//! The problem and the sequences of the tensors of a file.
use crate::error::Error;
use crate::files::{File, Stored};
use ferroflash::plan::Problem;
use reference::{Layout, Sequences};

/// Returns the problem of a file's tensors.
pub(super) fn problem(layout: Layout, [q, k, v]: [&Stored; 3]) -> Result<Problem, Error> {
    let sizes = |[a, b, c, d]: [usize; 4]| if layout == Layout::Bhsd { [a, c, b, d] } else { [a, b, c, d] };
    let ([batch, seqlen_q, heads_q, head_dim], [key_batch, seqlen_k, heads_k, key_dim]) =
        (sizes(q.shape), sizes(k.shape));
    for (name, tensor) in [("k", k), ("v", v)] {
        if tensor.dtype != q.dtype {
            let (got, want) = (tensor.dtype.name(), q.dtype.name());
            return Err(Error::Invalid(format!(
                "`{name}` is {got} and `q` is {want}; convert both to the same type"
            )));
        }
    }
    for (what, keys, queries) in [("batch", key_batch, batch), ("head_dim", key_dim, head_dim)] {
        if keys != queries {
            return Err(Error::Invalid(format!(
                "`k` has {what} {keys} and `q` has {queries}; they must be equal (shapes q {:?}, k {:?})",
                q.shape, k.shape
            )));
        }
    }
    if v.shape[..3] != k.shape[..3] {
        let what = format!(
            "`v` has shape {:?} and `k` has {:?}; they must be equal, except for head_dim",
            v.shape, k.shape
        );
        return Err(Error::Invalid(what));
    }
    let problem = Problem::new(q.dtype, batch, seqlen_q, heads_q, head_dim).head_dim_v(v.shape[3]);
    Ok(problem.seqlen_k(seqlen_k).heads_k(heads_k))
}

/// Reads the varlen offsets of a file, for these numbers of rows of Q and of K. Returns its sequences as they
/// are, and with padding of queries as sequences of their own.
pub(super) fn sequences(file: &File<'_>, rows: [usize; 2]) -> Result<[Sequences; 2], Error> {
    let starts = [file.list("cu_seqlens_q")?, file.list("cu_seqlens_k")?];
    let used = file.has("seqused_k").then(|| file.list("seqused_k")).transpose()?;
    let all = Sequences::new(starts, used, rows).map_err(|e| file.invalid(e))?;
    if !file.has("seqused_q") {
        return Ok([all.clone(), all]);
    }
    let divided = all.divided(&file.list("seqused_q")?).map_err(|e| file.invalid(e))?;
    Ok([all, divided])
}
