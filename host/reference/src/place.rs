//! The places of tensors in buffers.
use super::work::GUARD;
use ferroflash::DType;
use ferroflash::request::TensorView;

/// Memory layout of a problem's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `[batch][seqlen][heads][head_dim]`, one buffer per tensor.
    Bshd,
    /// `[batch][heads][seqlen][head_dim]`, one buffer per tensor.
    Bhsd,
    /// A row of one buffer holds the heads of Q, K and V side by side if `seqlen_q` equals `seqlen_k`;
    /// otherwise only K and V share a buffer. In O, 8 elements between two rows belong to no row.
    Packed,
}

impl Layout {
    /// Returns the layout's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::Bshd => "bshd",
            Layout::Bhsd => "bhsd",
            Layout::Packed => "packed",
        }
    }
}

/// The position of a tensor in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the buffer.
    pub buffer: usize,
    /// The index in the buffer of the tensor's first element.
    pub offset: usize,
    /// `[batch, seqlen, heads, head_dim]`.
    pub shape: [usize; 4],
    /// Strides of batch, row, head and column, in elements.
    pub strides: [i64; 4],
}

impl Place {
    /// Returns the number of elements from the first to the last element, both included.
    pub fn span(&self) -> usize {
        1 + self
            .shape
            .iter()
            .zip(self.strides)
            .map(|(size, stride)| (size - 1) * stride as usize)
            .sum::<usize>()
    }

    /// Returns the index of the element where row `index` starts. Rows are counted as
    /// `[batch][seqlen][heads]`.
    pub fn row(&self, index: usize) -> usize {
        let [_, rows, heads, _] = self.shape;
        let position = [index / (rows * heads), index / heads % rows, index % heads];
        self.offset + position.iter().zip(self.strides).map(|(i, stride)| i * stride as usize).sum::<usize>()
    }

    /// Returns the indices of all elements, in index order.
    pub(super) fn elements(self) -> impl Iterator<Item = usize> {
        let columns = self.shape[3];
        (0..self.shape.iter().product()).map(move |i| self.row(i / columns) + i % columns)
    }

    /// Returns the number of elements outside of this tensor that a launch has written, in an output with its
    /// guards. `poison` is an element that nobody has written.
    pub(super) fn strays<T: PartialEq>(self, output: &[T], poison: T) -> usize {
        let mut own = vec![false; output.len()];
        self.elements().for_each(|at| own[GUARD / size_of::<T>() + at] = true);
        output.iter().zip(own).filter(|(x, own)| !own && **x != poison).count()
    }

    /// Returns the request's view of a tensor, in a buffer of `elements` elements at address `base`.
    pub(super) fn view(&self, base: u64, elements: usize, dtype: DType) -> TensorView {
        let address = base + (self.offset * dtype.bytes()) as u64;
        let elements = elements.saturating_sub(self.offset) as u64;
        TensorView::new(address, elements, dtype, self.shape, self.strides)
    }

    /// Returns the place of a tensor that fills its own buffer. `Packed` leaves 8 elements between rows.
    pub(super) fn alone(buffer: usize, layout: Layout, shape: [usize; 4]) -> Self {
        let [_, rows, heads, head_dim] = shape.map(|size| size as i64);
        let gap = if layout == Layout::Packed { 8 } else { 0 };
        let strides = match layout {
            Layout::Bhsd => [heads * rows * head_dim, head_dim, rows * head_dim, 1],
            _ => [rows * (heads * head_dim + gap), heads * head_dim + gap, head_dim, 1],
        };
        Place { buffer, offset: 0, shape, strides }
    }

    /// Returns the places of tensors that share a buffer. A row of the buffer holds the heads of all of them.
    pub(super) fn side_by_side<const N: usize>(buffer: usize, shapes: [[usize; 4]; N]) -> [Self; N] {
        let row: usize = shapes.iter().map(|[_, _, heads, columns]| heads * columns).sum();
        let mut first = 0;
        shapes.map(|shape| {
            let [_, rows, heads, columns] = shape;
            let strides = [rows * row, row, columns, 1].map(|elements| elements as i64);
            let place = Place { buffer, offset: first, shape, strides };
            first += heads * columns;
            place
        })
    }
}

/// How the keys and the values of a KV cache share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Keys and values have one buffer each.
    Apart,
    /// A page of one buffer holds keys, then values. Rows of values have the strides of rows of keys, even if
    /// they have fewer columns.
    Interleaved,
    /// Values are the first columns of keys (MLA).
    Latent,
}

impl Sharing {
    /// Returns the number of buffers, and the number of tensors per buffer.
    pub(super) fn buffers(self) -> [usize; 2] {
        match self {
            Sharing::Apart => [2, 1],
            Sharing::Interleaved => [1, 2],
            Sharing::Latent => [1, 1],
        }
    }

    /// Returns the places of keys and values in pages `[pages, page, heads, columns]`. `columns` are the
    /// values'. With `hnd`, heads come before the rows of a page.
    pub(super) fn places(self, shape: [usize; 4], columns: usize, hnd: bool) -> [Place; 2] {
        let [pages, page, heads, _] = shape;
        let layout = if hnd { Layout::Bhsd } else { Layout::Bshd };
        let (mut keys, of_values) = (Place::alone(0, layout, shape), [pages, page, heads, columns]);
        let values = match self {
            Sharing::Apart => return [keys, Place::alone(1, layout, of_values)],
            Sharing::Interleaved => {
                let half = keys.strides[0];
                keys.strides[0] *= 2;
                Place { offset: half as usize, ..keys }
            }
            Sharing::Latent => keys,
        };
        [keys, Place { shape: of_values, ..values }]
    }
}
