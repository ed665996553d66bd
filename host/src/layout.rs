//! Which kernels accept a request's tensors. Selection asks this before it takes a kernel.
use crate::request::{AttentionRequest, KeysValues, RowOutputs, TensorView};
use crate::{AttnInfo, tma};

/// Maximum number of 16-byte chunks that keys, or values, may span.
const MAX_CHUNKS: u64 = 1 << 32;
/// The reason why decode kernels do not accept varlen tensors.
pub(crate) const FAR_HEADS: &str = "a stride of k and v is 2^36 bytes or more, the limit of decode kernels";

/// The reasons why kernels do not accept the tensors of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Whether TMA accepts Q, K, V and O, or the pages of a latent cache.
    maps: Result<(), &'static str>,
    /// Whether TMA accepts the bias.
    bias: Result<(), &'static str>,
    /// Whether one index addresses keys and values, as decode kernels need.
    index: Result<(), &'static str>,
    /// The outputs of rows that the kernel must write.
    pub rows: RowOutputs<bool>,
}

impl Layout {
    /// The layout of tensors that every kernel accepts.
    pub const ANY: Self = Layout { maps: Ok(()), bias: Ok(()), index: Ok(()), rows: RowOutputs::NONE };

    /// Returns the layout of a valid request's tensors.
    pub fn of(r: &AttentionRequest<'_>) -> Self {
        let index = match &r.kv {
            KeysValues::Tensors { k, v } => one_index(k, v),
            KeysValues::Varlen { k, v, .. } => one_index(k, v).and(match heads_are_far(k) {
                true => Err(FAR_HEADS),
                false => Ok(()),
            }),
            KeysValues::Cache(_) | KeysValues::Listed(_) => Ok(()),
        };
        let (maps, bias, rows) = (tma::accepts(r), tma::accepts_bias(r), RowOutputs::wanted(r));
        Layout { maps, bias, index, rows }
    }

    /// Checks that a kernel, which solves the request's problem, accepts the tensors.
    ///
    /// # Errors
    /// Returns the reason why the kernel does not accept the tensors.
    pub fn suits(&self, kernel: &AttnInfo) -> Result<(), &'static str> {
        self.rows.are_of(kernel)?;
        match (kernel.has_maps(), kernel.decodes()) {
            (true, _) if kernel.scores.bias.is_some() => self.bias.and(self.maps),
            (true, _) => self.maps,
            (false, true) => self.index,
            (false, false) => Ok(()),
        }
    }
}

/// Checks that one index addresses keys and values in tensors.
///
/// # Errors
/// Returns the reason why decode kernels do not accept these tensors.
pub(crate) fn one_index(k: &TensorView, v: &TensorView) -> Result<(), &'static str> {
    if (0..3).any(|dim| k.shape[dim] > 1 && k.strides[dim] != v.strides[dim]) {
        return Err("k and v have different strides; decode kernels need equal ones");
    }
    let steps = k.shape.iter().zip(&k.strides);
    let elements = steps.map(|(extent, stride)| (*extent as u64 - 1).saturating_mul(*stride as u64));
    let chunks = elements.fold(0, u64::saturating_add).saturating_mul(k.element_bytes()) / 16 + 1;
    if chunks > MAX_CHUNKS {
        return Err("k or v spans more than 64 GiB, the limit of decode kernels");
    }
    Ok(())
}

/// Returns whether heads are 2^36 bytes or more apart.
fn heads_are_far(view: &TensorView) -> bool {
    view.shape[2] > 1 && (view.strides[2] as u64).saturating_mul(view.element_bytes()) >= 1 << 36
}
