//! The structs of `ferroflash.h`, and `ferroflash_forward_t` as a [`Forward`].
use crate::args::{Args, dtype, extent, mask, name, reach, slopes};
use crate::call::invalid;
use ferroflash::Error;
use ferroflash::request::{
    Alignment, AttentionRequest, Index, LseView, Scratch, TensorView, VarlenKeys, VarlenQueries,
};
use std::ffi::{c_char, c_void};

/// `ferroflash_forward_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ForwardArgs {
    /// Bytes of this struct that the caller knows.
    pub size: u64,
    /// Queries.
    pub q: *const c_void,
    /// Keys.
    pub k: *const c_void,
    /// Values.
    pub v: *const c_void,
    /// Output.
    pub o: *mut c_void,
    /// Log-sum-exp, or null.
    pub lse: *mut f32,
    /// Sequences.
    pub batch: i64,
    /// Queries of a sequence.
    pub seqlen_q: i64,
    /// Keys of a sequence.
    pub seqlen_k: i64,
    /// Query heads.
    pub heads_q: i64,
    /// Key and value heads.
    pub heads_k: i64,
    /// Columns of a head.
    pub head_dim: i64,
    /// Elements from one batch, row, head, column to the next.
    pub q_strides: [i64; 4],
    /// The same.
    pub k_strides: [i64; 4],
    /// The same.
    pub v_strides: [i64; 4],
    /// The same.
    pub o_strides: [i64; 4],
    /// Elements from one batch and head to the next.
    pub lse_strides: [i64; 2],
    /// 0 is f16, 1 is bf16.
    pub dtype: i32,
    /// 0 full, 1 causal, 3 window.
    pub mask: i32,
    /// Keys before the query's position; -1 is unbounded.
    pub window_left: i32,
    /// Keys behind the query's position; -1 is unbounded.
    pub window_right: i32,
    /// 0 is `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// 0 is none.
    pub softcap: f32,
    /// Name of an entry, or null.
    pub config: *const c_char,
    /// Device memory that the launch may use, or null.
    pub workspace: *mut c_void,
    /// Its size.
    pub workspace_bytes: u64,
    /// 0 bottom-right, 1 top-left.
    pub alignment: i32,
    /// Where packed sequences begin among the rows of Q and O, and the last one ends; or null.
    pub cu_seqlens_q: *const i32,
    /// The same for K and V.
    pub cu_seqlens_k: *const i32,
    /// Keys of each packed sequence that exist, or null.
    pub seqused_k: *const i32,
    /// Rows of Q and O of all packed sequences.
    pub total_q: i64,
    /// The same of K and V.
    pub total_k: i64,
    /// ALiBi slopes in device memory, or null.
    pub alibi_slopes: *const f32,
    /// Elements from one sequence and query head to the next.
    pub alibi_strides: [i64; 2],
}

/// Bytes of `ferroflash_forward_t` in version 1 of the interface: less is no such struct.
pub const FORWARD_SIZE_V1: usize = std::mem::offset_of!(ForwardArgs, config) + size_of::<*const c_char>();

/// `ferroflash_plan_info_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanInfo {
    /// Bytes of this struct that the caller knows.
    pub size: u64,
    /// Name of the kernel.
    pub entry: *const c_char,
    /// Why this one.
    pub reason: *const c_char,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub smem_bytes: u64,
    /// Bytes of workspace that launches use.
    pub workspace_bytes: u64,
    /// Bytes of counters that launches use where they are given some.
    pub counters_bytes: u64,
}

impl PlanInfo {
    /// Bytes of `ferroflash_plan_info_t` in version 1 of the interface: less is no such struct.
    pub const SIZE_V1: usize = std::mem::offset_of!(PlanInfo, smem_bytes) + size_of::<u64>();
}

// SAFETY: all fields are plain, the first is the size.
unsafe impl Args for ForwardArgs {
    const NAME: &str = "forward";
    const SIZE: &str = "forward.size";
    const INIT: &str = "FERROFLASH_FORWARD_INIT";
    const LEAST: usize = FORWARD_SIZE_V1;
}

impl ForwardArgs {
    /// The same as a request of the Rust library, unchecked but for what its types cannot say.
    ///
    /// # Safety
    /// `config` is null or a string that lives for `'a`.
    pub(crate) unsafe fn forward<'a>(&self) -> Result<AttentionRequest<'a>, Error> {
        let dtype = dtype("dtype", self.dtype)?;
        let [batch, head_dim] = [extent("batch", self.batch)?, extent("head_dim", self.head_dim)?];
        let varlen = self.varlen(batch)?;
        let (batch, [rows_q, rows_k]) = match varlen {
            None => (batch, [extent("seqlen_q", self.seqlen_q)?, extent("seqlen_k", self.seqlen_k)?]),
            Some(_) => (1, [extent("total_q", self.total_q)?, extent("total_k", self.total_k)?]),
        };
        let queries = [batch, rows_q, extent("heads_q", self.heads_q)?, head_dim];
        let keys = [batch, rows_k, extent("heads_k", self.heads_k)?, head_dim];
        let view = |address: u64, shape: [usize; 4], strides: [i64; 4]| {
            TensorView::new(address, reach(&shape, &strides), dtype, shape, strides)
        };
        let q = view(self.q as u64, queries, self.q_strides);
        let k = view(self.k as u64, keys, self.k_strides);
        let v = view(self.v as u64, keys, self.v_strides);
        let o = view(self.o as u64, queries, self.o_strides);
        let mut forward = match varlen {
            None => AttentionRequest::dense(q, k, v, o),
            Some((queries, keys)) => AttentionRequest::varlen(q, k, v, o, queries, keys),
        }
        .mask(mask(self.mask, [self.window_left, self.window_right])?)
        .alignment(self.alignment()?)
        .softcap(self.softcap);
        let sequences = extent("batch", self.batch)?;
        forward.scores.alibi = slopes(self.alibi_slopes, self.alibi_strides, [sequences, queries[2]]);
        forward.scores.scale = (self.scale != 0.0).then_some(self.scale);
        if !self.lse.is_null() {
            let (shape, [by_batch, by_head]) = ([queries[0], queries[2], queries[1]], self.lse_strides);
            let elements = reach(&shape, &[by_batch, by_head, 1]);
            forward.lse = Some(LseView::new(self.lse as u64, elements, shape, self.lse_strides));
        }
        if !self.workspace.is_null() {
            forward.scratch = Scratch::workspace(self.workspace as u64, self.workspace_bytes);
        }
        // SAFETY: the caller's promise.
        forward.config = unsafe { name("config", self.config)? };
        Ok(forward)
    }

    /// Where each of `batch` sequences begins, if they are varlen.
    fn varlen(&self, batch: usize) -> Result<Option<(VarlenQueries, VarlenKeys)>, Error> {
        let integers = [self.cu_seqlens_q, self.cu_seqlens_k, self.seqused_k];
        let [cu_seqlens_q, cu_seqlens_k, seqused_k] = integers.map(|address| address as u64);
        if integers.iter().all(|address| address.is_null()) {
            return Ok(None);
        }
        for (what, address) in [("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)] {
            if address == 0 {
                return Err(invalid(what, "NULL", "varlen sequences have cu_seqlens_q and cu_seqlens_k"));
            }
        }
        let [longest_q, longest_k] = [extent("seqlen_q", self.seqlen_q)?, extent("seqlen_k", self.seqlen_k)?];
        let starts = |address: u64| Index::new(address, (batch as u64).saturating_add(1));
        let mut keys = VarlenKeys::new(starts(cu_seqlens_k), longest_k);
        keys.seqused_k = (seqused_k != 0).then_some(Index::new(seqused_k, batch as u64));
        Ok(Some((VarlenQueries::new(batch, starts(cu_seqlens_q), longest_q), keys)))
    }

    fn alignment(&self) -> Result<Alignment, Error> {
        match self.alignment {
            0 => Ok(Alignment::BottomRight),
            1 => Ok(Alignment::TopLeft),
            other => {
                Err(invalid("alignment", other, "it must be FERROFLASH_BOTTOM_RIGHT or FERROFLASH_TOP_LEFT"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::read;
    use ferroflash::request::{KeysValues, Mask, Queries, Scores};

    /// A struct of a later version: ours, and eight bytes more.
    #[repr(C)]
    struct Later {
        args: ForwardArgs,
        more: u64,
    }

    fn args(size: usize) -> ForwardArgs {
        // SAFETY: zeros are a value of every field.
        let args: ForwardArgs = unsafe { std::mem::zeroed() };
        ForwardArgs { size: size as u64, batch: 3, softcap: 5.0, ..args }
    }

    #[test]
    fn structs_of_other_versions() {
        let ours = size_of::<ForwardArgs>();
        let read = |later: &Later| {
            // SAFETY: as long as its size says, at most.
            unsafe { read::<ForwardArgs>(std::ptr::from_ref(later).cast()) }
        };
        let later = |size, more| Later { args: args(size), more };
        assert_eq!(read(&later(ours, 9)).expect("ours").batch, 3);
        assert_eq!(read(&later(ours + 8, 0)).expect("unknown fields are unset").softcap, 5.0);
        let error = read(&later(ours + 8, 9)).expect_err("an unknown field is set");
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        for size in [0, 8, FORWARD_SIZE_V1 - 1, usize::MAX] {
            let error = read(&later(size, 0)).expect_err("no such size").to_string();
            assert!(error.contains("forward.size"), "{error}");
        }
    }

    #[test]
    fn what_c_writes_is_what_is_asked_for() {
        let tensors = |f: &AttentionRequest<'_>| f.kv.tensors().expect("tensors").map(|view| *view);
        let (k, v) = (|f: &AttentionRequest<'_>| tensors(f)[0], |f: &AttentionRequest<'_>| tensors(f)[1]);
        let forward = |change: fn(&mut ForwardArgs)| {
            let mut args = args(size_of::<ForwardArgs>());
            (args.seqlen_q, args.seqlen_k, args.heads_q, args.heads_k, args.head_dim) = (5, 7, 4, 2, 64);
            (args.q_strides, args.lse_strides) = ([5 * 256, 256, 64, 1], [20, 5]);
            change(&mut args);
            // SAFETY: no name, or a static one.
            unsafe { args.forward() }
        };
        let f = forward(|_| {}).expect("valid");
        assert_eq!((f.q.shape, k(&f).shape, f.q.elements), ([3, 5, 4, 64], [3, 7, 2, 64], 3 * 5 * 256));
        assert_eq!((f.scores, f.lse), (Scores::new().softcap(5.0), None));
        assert_eq!((f.config, f.mask), (None, Mask::Full));
        let window =
            forward(|args| (args.mask, args.window_left, args.window_right) = (3, -1, 0)).expect("valid");
        assert_eq!(window.mask, Mask::Window { left: None, right: Some(0) });
        let lse = forward(|args| args.lse = 64 as *mut f32).expect("valid").lse.expect("asked for");
        assert_eq!((lse.shape, lse.elements), ([3, 4, 5], 2 * 20 + 3 * 5 + 4 + 1));
        assert_eq!(f.scratch, Scratch::None);
        let room = forward(|args| (args.workspace, args.workspace_bytes) = (64 as *mut c_void, 4096))
            .expect("valid");
        assert_eq!(room.scratch, Scratch::workspace(64, 4096));
        let named = forward(|args| args.config = c"fwd_x".as_ptr()).expect("valid");
        assert_eq!(named.config, Some("fwd_x"));
        let packed = |args: &mut ForwardArgs| {
            (args.cu_seqlens_q, args.cu_seqlens_k) = (256 as *const i32, 512 as *const i32);
            (args.total_q, args.total_k, args.lse) = (11, 13, 64 as *mut f32);
        };
        let p = forward(packed).expect("valid");
        assert_eq!((p.q.shape, v(&p).shape), ([1, 11, 4, 64], [1, 13, 2, 64]));
        assert_eq!(p.lse.expect("asked for").shape, [1, 4, 11]);
        let queries = VarlenQueries::new(3, Index::new(256, 4), 5);
        let meant = VarlenKeys::new(Index::new(512, 4), 7);
        assert_eq!((f.queries, p.queries), (Queries::Batched, Queries::Varlen(queries)));
        let keys = |f: &AttentionRequest<'_>| match f.kv {
            KeysValues::Varlen { keys, .. } => Some(keys),
            KeysValues::Tensors { .. } | KeysValues::Cache(_) => None,
        };
        assert_eq!((keys(&f), keys(&p)), (None, Some(meant)));
        let used = forward(|args| {
            (args.cu_seqlens_q, args.cu_seqlens_k) = (256 as *const i32, 512 as *const i32);
            (args.total_q, args.total_k, args.seqused_k) = (11, 13, 1024 as *const i32);
        });
        assert_eq!(keys(&used.expect("valid")), Some(meant.seqused_k(Index::new(1024, 3))));
        let refused = |change| forward(change).expect_err("refused").to_string();
        assert!(refused(|args| args.dtype = 9).contains("dtype: 9"));
        assert!(refused(|args| args.mask = -1).contains("mask: -1"));
        assert!(refused(|args| args.batch = -1).contains("batch: -1"));
        assert!(refused(|args| (args.mask, args.window_left) = (3, -2)).contains("window_left: -2"));
        assert!(refused(|args| args.config = c"\xff".as_ptr()).contains("UTF-8"));
        assert!(refused(|args| args.cu_seqlens_q = 256 as *const i32).contains("cu_seqlens_k: NULL"));
        assert!(refused(|args| args.seqused_k = 256 as *const i32).contains("cu_seqlens_q: NULL"));
    }
}
