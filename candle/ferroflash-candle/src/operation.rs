//! The operation of the functions that have a gradient.
use crate::attend::Attend;
use crate::plain;
use crate::starts::Starts;
#[cfg(feature = "cuda")]
use crate::{backward, forward};
use candle::{CpuStorage, CustomOp3, Device, Layout, Result, Shape, Tensor};
#[cfg(feature = "cuda")]
use candle::{CudaStorage, Storage, op::BackpropOp};
use std::sync::OnceLock;

/// Attention with a gradient: FerroFlash's kernels on a GPU, plain formulas on the CPU.
pub(crate) struct Attention {
    attend: Attend,
    starts: Option<Starts>,
    /// The LSE of a forward on a GPU, for the gradient. If there is no place, nothing keeps the LSE.
    lse: Option<OnceLock<Tensor>>,
}

/// The gradients of an operation's inputs.
pub(crate) type Gradients = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

impl Attention {
    /// Creates attention that keeps no LSE.
    pub fn new(attend: Attend, starts: Option<Starts>) -> Self {
        Attention { attend, starts, lse: None }
    }

    /// Computes O. If the program tracks an input, the forward also computes the LSE and keeps it.
    pub fn apply(mut self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let is_tracked = [q, k, v].into_iter().any(Tensor::track_op);
        self.lse = (is_tracked && cfg!(feature = "training")).then(OnceLock::new);
        q.apply_op3(k, v, self)
    }

    /// Returns the sequences of varlen tensors.
    fn starts(&self) -> Option<Starts<&Tensor>> {
        self.starts.as_ref().map(Starts::as_ref)
    }
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        if self.starts.is_some() { "flash-attn-varlen" } else { "flash-attn" }
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_l: &Layout,
        k: &CpuStorage,
        k_l: &Layout,
        v: &CpuStorage,
        v_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.attend.is_untracked()?;
        plain::forward(&self.attend, self.starts(), [(q, q_l), (k, k_l), (v, v_l)])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        q_l: &Layout,
        k: &CudaStorage,
        k_l: &Layout,
        v: &CudaStorage,
        v_l: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.attend.is_untracked()?;
        let inputs = [(q, q_l), (k, k_l), (v, v_l)];
        let outputs = forward::forward(inputs, &self.attend, self.starts(), self.lse.is_some())?;
        if let (Some(place), Some((lse, shape))) = (&self.lse, outputs.lse) {
            place.get_or_init(|| Tensor::from_storage(Storage::Cuda(lse), shape, BackpropOp::none(), false));
        }
        Ok((outputs.o, outputs.shape))
    }

    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "the CPU computes O again"))]
    fn bwd(&self, q: &Tensor, k: &Tensor, v: &Tensor, o: &Tensor, d_o: &Tensor) -> Result<Gradients> {
        let [dq, dk, dv] = match q.device() {
            Device::Cpu => plain::backward(&self.attend, self.starts(), [q, k, v], d_o)?,
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => {
                let lse = self.lse.as_ref().and_then(OnceLock::get);
                backward::gradients(&self.attend, self.starts(), [q, k, v], (o, lse), d_o)?
            }
            _ => return Err(candle::Error::BackwardNotSupported { op: self.name() }),
        };
        Ok((dq, dk, dv))
    }
}
