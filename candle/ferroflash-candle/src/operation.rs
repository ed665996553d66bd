//! The operations of the functions that have a gradient.
use crate::attend::Attend;
#[cfg(feature = "cuda")]
use crate::gpu::{backward, forward};
use crate::plain;
use crate::starts::Starts;
#[cfg(feature = "cuda")]
use candle::CudaStorage;
use candle::{CpuStorage, CustomOp3, Device, Layout, Result, Shape, Tensor};
#[cfg(feature = "cuda")]
use ferroflash::request::RowOutputs;
use std::sync::OnceLock;

/// candle-flash-attn's operation for `Tensor::apply_op3`. On a GPU, its gradient computes the forward again
/// for the LSE; [`flash_attn`](crate::flash_attn) and its siblings keep the LSE.
pub struct FlashAttn {
    /// Factor of the scores, above 0.
    pub softmax_scale: f32,
    /// ALiBi slopes, f32 `[heads]`.
    pub alibi_slopes: Option<Tensor>,
    /// Number of visible keys before a query's position; `None` is all.
    pub window_size_left: Option<usize>,
    /// Number of visible keys after a query's position; `None` is all.
    pub window_size_right: Option<usize>,
    /// The softcap: scores become `softcap * tanh(score / softcap)`. 0, negative values and `None` turn it
    /// off.
    pub softcap: Option<f32>,
}

impl FlashAttn {
    fn operation(&self) -> Attention {
        let FlashAttn { softmax_scale, window_size_left, window_size_right, softcap, .. } = *self;
        let attend = Attend::full(softmax_scale).window(window_size_left, window_size_right);
        let attend = attend.softcap(softcap.unwrap_or(0.0));
        Attention::new(self.alibi_slopes.iter().fold(attend, Attend::alibi_slopes), None)
    }
}

/// Attention with a gradient: FerroFlash's kernels on a GPU, plain formulas on the CPU.
pub(crate) struct Attention {
    attend: Attend,
    starts: Option<Starts>,
    /// The LSE of a forward on a GPU, for the gradient. If there is no place, nothing keeps the LSE.
    lse: Option<OnceLock<Tensor>>,
}

impl Attention {
    /// Creates attention that keeps no LSE.
    pub fn new(attend: Attend, starts: Option<Starts>) -> Self {
        Attention { attend, starts, lse: None }
    }

    /// Computes O. If the program tracks an input, the forward also computes the LSE and keeps it.
    pub fn apply(mut self, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let is_tracked = [q, k, v].into_iter().any(Tensor::track_op);
        self.lse = (is_tracked && cfg!(feature = "training")).then(OnceLock::new);
        q.apply_op3(k, v, self)
    }

    fn on_cpu(&self, inputs: [(&CpuStorage, &Layout); 3]) -> Result<(CpuStorage, Shape)> {
        self.attend.is_untracked()?;
        plain::forward(&self.attend, self.starts.as_ref(), inputs)
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self, inputs: [(&CudaStorage, &Layout); 3]) -> Result<(CudaStorage, Shape)> {
        self.attend.is_untracked()?;
        let wanted = RowOutputs { lse: self.lse.is_some(), ..RowOutputs::NONE };
        let outputs = forward::forward(inputs, &self.attend, self.starts.as_ref(), wanted)?;
        if let (Some(place), Some(lse)) = (&self.lse, outputs.rows.lse) {
            place.get_or_init(|| lse);
        }
        Ok((outputs.o, outputs.shape))
    }

    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "the CPU computes O again"))]
    fn gradients(&self, inputs: [&Tensor; 3], o: &Tensor, d_o: &Tensor) -> Result<[Option<Tensor>; 3]> {
        match inputs[0].device() {
            Device::Cpu => plain::backward(&self.attend, self.starts.as_ref(), inputs, d_o),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => {
                let lse = self.lse.as_ref().and_then(OnceLock::get);
                backward::gradients(&self.attend, self.starts.as_ref(), inputs, (o, lse), d_o)
            }
            _ => Err(candle::Error::BackwardNotSupported { op: "flash-attn" }),
        }
    }
}

/// Implements candle's trait for types that have an [`Attention`].
macro_rules! operations {
    ($($type:ty, $this:ident => $attention:expr;)*) => {$(
        impl CustomOp3 for $type {
            fn name(&self) -> &'static str {
                "flash-attn"
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
                let $this = self;
                $attention.on_cpu([(q, q_l), (k, k_l), (v, v_l)])
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
                let $this = self;
                $attention.on_gpu([(q, q_l), (k, k_l), (v, v_l)])
            }

            fn bwd(
                &self,
                q: &Tensor,
                k: &Tensor,
                v: &Tensor,
                o: &Tensor,
                d_o: &Tensor,
            ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
                let $this = self;
                $attention.gradients([q, k, v], o, d_o).map(Into::into)
            }
        }
    )*};
}
operations! {
    Attention, attention => attention;
    FlashAttn, op => op.operation();
}
