//! `ferroflash_backward`: the gradients of an attention.
use crate::args::{Ask, present, read, rows_of, view};
use crate::attention::bias_like;
use crate::call::invalid;
use crate::structs::BackwardArgs;
use ferroflash::Error;
use ferroflash::request::{AttentionBackward, Bias, Scratch, Sinks};

impl Ask for BackwardArgs {
    type Request<'a> = AttentionBackward<'a>;

    unsafe fn request<'a>(&self) -> Result<AttentionBackward<'a>, Error> {
        if self.forward.is_null() {
            let expected = "it must point to the ferroflash_attention_t whose launch has written o and lse";
            return Err(invalid("forward", "NULL", expected));
        }
        // SAFETY: the pointer is not null; the caller promises a struct, and null or a string in it.
        let forward = unsafe { read(self.forward)?.request()? };
        let [q, k, v, o] = forward.problem().shapes();
        let dtype = forward.q.dtype;
        let d_o = view(self.d_o, dtype, o, self.d_o_strides);
        let dq = view(self.dq, dtype, q, self.dq_strides);
        let dk = view(self.dk, dtype, k, self.dk_strides);
        let dv = view(self.dv, dtype, v, self.dv_strides);
        let workspace =
            present(self.workspace).map(|address| Scratch::workspace(address, self.workspace_bytes));
        let mut request = AttentionBackward::new(forward, d_o, dq, dk, dv);
        request.d_lse = present(self.d_lse).map(|address| {
            let [batch, head] = self.d_lse_strides;
            rows_of(address, [o[0], o[2], o[1]], [batch, head, 1])
        });
        let elements = forward.q.shape[2] as u64;
        request.dsinks = present(self.dsinks).map(|address| Sinks { address, elements });
        request.dbias = present(self.dbias).map(|address| {
            // Validation refuses the gradient of a bias that is not there.
            let bias = forward.scores.bias.unwrap_or(Bias::new(0, 0, dtype, [1; 4], [0; 4]));
            bias_like(address, bias.dtype, bias.extents(), self.dbias_strides)
        });
        Ok(request.scratch(workspace.unwrap_or(Scratch::Fastest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{at, cache, check_refusals, planned, tensors, valid, zeros};
    use crate::structs::AttentionArgs;
    use ferroflash::DType;
    use std::ptr::{null, null_mut};

    /// Returns the attention of [`tensors`] with an LSE, and strides of contiguous tensors.
    fn forward() -> AttentionArgs {
        let keys = [7 * 128, 128, 64, 1];
        AttentionArgs {
            lse: at(5),
            lse_strides: [20, 5],
            k_strides: keys,
            v_strides: keys,
            o_strides: tensors().q_strides,
            ..tensors()
        }
    }

    fn backward(forward: &AttentionArgs) -> BackwardArgs {
        BackwardArgs {
            forward,
            d_o: at(6),
            dq: at(7),
            dk: at(8),
            dv: at(9),
            d_o_strides: forward.o_strides,
            dq_strides: forward.q_strides,
            dk_strides: forward.k_strides,
            dv_strides: forward.v_strides,
            ..zeros()
        }
    }

    #[test]
    fn the_request_has_the_forwards_shapes() {
        let forward = forward();
        let (queries, keys) = ([3, 5, 4, 64], [3, 7, 2, 64]);
        let r = valid(&backward(&forward));
        let shapes = [r.d_o, r.dq, r.dk, r.dv].map(|view| view.shape);
        assert_eq!(shapes, [queries, queries, keys, keys]);
        assert_eq!([r.d_o, r.dq, r.dk, r.dv].map(|view| view.address >> 40), [6, 7, 8, 9]);
        assert_eq!((r.dk.elements, r.d_lse, r.scratch), (3 * 7 * 128, None, Scratch::Fastest));
        let args = BackwardArgs { d_lse: at(10), d_lse_strides: [0, 5], ..backward(&forward) };
        let r = valid(&BackwardArgs { workspace: at(11), workspace_bytes: 4096, ..args });
        let d_lse = r.d_lse.expect("asked for");
        assert_eq!((d_lse.shape, d_lse.strides, d_lse.elements), ([3, 4, 5], [0, 5], 3 * 5 + 4 + 1));
        assert_eq!((r.scratch, r.dsinks), (Scratch::workspace(11 << 40, 4096), None));
        let r = valid(&BackwardArgs { dsinks: at(12), ..args });
        assert_eq!(r.dsinks, Some(Sinks { address: 12 << 40, elements: 4 }));
        // The bias shares its rows among sequences.
        let forward = AttentionArgs { bias: at(13), bias_strides: [0, 40, 8], ..forward };
        let r =
            valid(&BackwardArgs { forward: &forward, dbias: at(14), dbias_strides: [160, 40, 8], ..args });
        let dbias = r.dbias.expect("asked for");
        assert_eq!(
            (dbias.shape, dbias.dtype, dbias.elements),
            ([1, 4, 5, 7], DType::F16, 3 * 40 + 4 * 8 + 8)
        );
    }

    #[test]
    fn plans_and_refusals() {
        let forward = forward();
        let args = backward(&forward);
        let whole = planned(&args, "l4").expect("planned");
        assert!(whole.contract().symbol.starts_with("bwd_"), "{}", whole.contract().symbol);
        assert!(whole.scratch_bytes().workspace > 0, "a workspace");
        let without_lse = AttentionArgs { lse: null_mut(), ..forward };
        let in_cache = AttentionArgs { lse: forward.lse, lse_strides: [32, 1], ..cache() };
        let of_size_8 = AttentionArgs { size: 8, ..forward };
        check_refusals(&[
            (BackwardArgs { forward: null(), ..args }, "forward: NULL"),
            (BackwardArgs { dk: null_mut(), ..args }, "dk"),
            (BackwardArgs { workspace: at(11), workspace_bytes: 16, ..args }, "workspace.bytes: 16"),
            (BackwardArgs { dsinks: at(12), ..args }, "dsinks"),
            (BackwardArgs { dbias: at(12), ..args }, "dbias: some"),
            (backward(&without_lse), "lse: none"),
            (backward(&in_cache), "backward on a KV cache"),
            (backward(&of_size_8), "attention.size: 8"),
        ]);
    }
}
