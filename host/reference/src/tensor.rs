//! Tensors in host memory.
use super::arithmetic::decode;
use ferroflash::DType;
use thiserror::Error;

/// A tensor that cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorError {
    /// An element lies outside the slice.
    #[error(
        "shape and strides reach elements {first}..={last}, but the slice has {len}: give a longer slice \
         or smaller strides"
    )]
    OutOfBounds {
        /// Lowest index that the shape and strides reach.
        first: i128,
        /// Highest index that the shape and strides reach.
        last: i128,
        /// Elements of the slice.
        len: usize,
    },
    /// A size is zero.
    #[error("shape {0:?} has a zero: every size must be 1 or more")]
    Empty([usize; 4]),
    /// Columns are not contiguous.
    #[error("columns are {0} elements apart: they must be 1 apart")]
    Columns(i64),
    /// A tensor has another shape or type than the problem.
    #[error("{name} is {got_dtype:?} {got:?}, the problem needs {want_dtype:?} {want:?}")]
    Mismatch {
        /// Name of the tensor.
        name: &'static str,
        /// The tensor's shape.
        got: [usize; 4],
        /// The tensor's type.
        got_dtype: DType,
        /// The problem's shape.
        want: [usize; 4],
        /// The problem's type.
        want_dtype: DType,
    },
    /// An array of integers does not describe the sequences of a varlen batch.
    #[error("{name} is {got:?}: {want}")]
    Sequences {
        /// Name of the array.
        name: &'static str,
        /// The array's content.
        got: Vec<i32>,
        /// The requirement.
        want: String,
    },
    /// The number of ALiBi slopes is wrong.
    #[error("{got} slopes; there must be {want}: one per query head, or one per sequence and query head")]
    Slopes {
        /// Number of slopes given.
        got: usize,
        /// Number of slopes required.
        want: usize,
    },
    /// The number of scales of rows is wrong.
    #[error("{got} scales of rows; there must be {want}: one per row and head of one batch")]
    Scales {
        /// Number of scales given.
        got: usize,
        /// Number of scales required.
        want: usize,
    },
    /// The number of query heads is not a multiple of the number of key heads.
    #[error("{heads_q} query heads cannot share {heads_k} key heads: heads_q must be a multiple of heads_k")]
    Heads {
        /// Query heads.
        heads_q: usize,
        /// Key heads.
        heads_k: usize,
    },
}

/// A 16-bit tensor in host memory, `[batch, rows, heads, head_dim]`. The column stride is 1; other strides
/// are free.
#[derive(Clone, Copy, Debug)]
pub struct HostTensor<'a> {
    bits: &'a [u16],
    offset: i64,
    dtype: DType,
    shape: [usize; 4],
    strides: [i64; 4],
    /// A factor for each row, `[row][head]`, or `None` for 1.
    scales: Option<&'a [f32]>,
    /// A factor for each batch and group of heads, `[batch][group]`, and the heads of a group; or `None` for
    /// 1.
    groups: Option<(&'a [f32], usize)>,
}

impl<'a> HostTensor<'a> {
    /// Creates a view of `bits`. The tensor begins at element `offset`. Strides are in elements, as in
    /// [`ferroflash::request::TensorView`].
    ///
    /// # Errors
    /// Returns [`TensorError`] if a size is zero, the column stride is not 1, or an element lies outside of
    /// `bits`.
    pub fn new(
        bits: &'a [u16],
        offset: usize,
        dtype: DType,
        shape: [usize; 4],
        strides: [i64; 4],
    ) -> Result<Self, TensorError> {
        if shape.contains(&0) {
            return Err(TensorError::Empty(shape));
        }
        if strides[3] != 1 {
            return Err(TensorError::Columns(strides[3]));
        }
        let (mut first, mut last) = (offset as i128, offset as i128);
        for (size, stride) in shape.into_iter().zip(strides) {
            let reach = (size as i128 - 1) * i128::from(stride);
            if reach < 0 { first += reach } else { last += reach }
        }
        if first < 0 || last >= bits.len() as i128 {
            return Err(TensorError::OutOfBounds { first, last, len: bits.len() });
        }
        Ok(HostTensor { bits, offset: offset as i64, dtype, shape, strides, scales: None, groups: None })
    }

    /// Creates a contiguous BSHD tensor.
    ///
    /// # Errors
    /// Returns the errors of [`HostTensor::new`].
    pub fn bshd(bits: &'a [u16], dtype: DType, shape: [usize; 4]) -> Result<Self, TensorError> {
        let [_, rows, heads, head_dim] = shape.map(|size| size as i64);
        Self::new(bits, 0, dtype, shape, [rows * heads * head_dim, heads * head_dim, head_dim, 1])
    }

    /// Multiplies each row of each head by its scale, `[row][head]`. The tensor must have one batch.
    ///
    /// # Errors
    /// Returns [`TensorError::Scales`] if there is not one scale per row and head.
    pub fn scaled(self, scales: &'a [f32]) -> Result<Self, TensorError> {
        let [batches, rows, heads, _] = self.shape;
        let (got, want) = (scales.len(), batches * rows * heads);
        let is_valid = batches == 1 && got == want;
        is_valid
            .then_some(HostTensor { scales: Some(scales), ..self })
            .ok_or(TensorError::Scales { got, want })
    }

    /// Multiplies each group of `heads` heads of each batch by its scale, `[batch][group]`. The sequences of
    /// a single batch may have scales each.
    ///
    /// # Errors
    /// Returns [`TensorError::Scales`] if there is not one scale per batch and group.
    pub fn of_groups(self, scales: &'a [f32], heads: usize) -> Result<Self, TensorError> {
        let [batches, _, all, _] = self.shape;
        let (got, want) = (scales.len(), batches * all / heads.max(1));
        let of_sequences = batches == 1 && want > 0 && got.is_multiple_of(want);
        let is_valid = (got == want || of_sequences) && all.is_multiple_of(heads);
        let scaled = HostTensor { groups: Some((scales, heads)), ..self };
        is_valid.then_some(scaled).ok_or(TensorError::Scales { got, want })
    }

    /// Returns the tensor with the scales of sequence `index` of its only batch.
    pub(super) fn of_sequence(self, index: usize) -> Self {
        let groups = self.groups.map(|(scales, each)| (&scales[index * self.shape[2] / each..], each));
        HostTensor { groups, ..self }
    }

    /// Returns the largest magnitude of a tensor whose rows have scales, or `None` if rows have no scales.
    pub(super) fn largest_scaled(&self) -> Option<f64> {
        let [_, rows, heads, _] = self.shape;
        let all = || (0..rows).flat_map(|row| (0..heads).flat_map(move |head| self.values(0, row, head)));
        self.scales.map(|_| all().fold(0.0, |most, x| f64::from(x.abs()).max(most)))
    }

    /// Returns a range of the tensor's batches.
    #[must_use]
    pub fn batches(self, batches: std::ops::Range<usize>) -> Self {
        let [_, rows, heads, head_dim] = self.shape;
        let offset = self.offset + batches.start as i64 * self.strides[0];
        let groups = self.groups.map(|(scales, each)| (&scales[batches.start * heads / each..], each));
        HostTensor { offset, shape: [batches.len(), rows, heads, head_dim], groups, ..self }
    }

    /// Returns a range of the tensor's rows, which may be empty.
    #[must_use]
    pub fn rows(self, rows: std::ops::Range<usize>) -> Self {
        let [batches, _, heads, head_dim] = self.shape;
        let offset = self.offset + rows.start as i64 * self.strides[1];
        let scales = self.scales.map(|scales| &scales[rows.start * heads..rows.end * heads]);
        HostTensor { offset, shape: [batches, rows.len(), heads, head_dim], scales, ..self }
    }

    /// Returns the shape `[batch, rows, heads, head_dim]`.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the bits of one row of one head.
    pub fn row(&self, batch: usize, row: usize, head: usize) -> &'a [u16] {
        let position = [batch as i64, row as i64, head as i64];
        let start = self.offset
            + position.iter().zip(self.strides).map(|(index, stride)| index * stride).sum::<i64>();
        &self.bits[start as usize..][..self.shape[3]]
    }

    /// Returns the numbers of one row of one head: the elements times the row's scale, rounded to f32.
    pub fn values(&self, batch: usize, row: usize, head: usize) -> impl Iterator<Item = f32> + use<'a> {
        let (dtype, heads) = (self.dtype, self.shape[2]);
        let of_group = self.groups.map_or(1.0, |(all, each)| all[(batch * heads + head) / each]);
        let scale = self.scales.map_or(of_group, |all| all[row * heads + head] * of_group);
        self.row(batch, row, head).iter().map(move |bits| decode(dtype, *bits) * scale)
    }
}
