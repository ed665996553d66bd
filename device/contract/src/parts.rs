//! The distribution of rows over threads.
use crate::FastDiv;

/// Each thread gets one part of one row. A block gets whole rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowParts {
    /// Number of rows.
    pub rows: u32,
    /// Whole rows per block.
    pub block_rows: u32,
    /// Parts per row.
    pub parts: FastDiv,
    /// Padding: 0.
    pub reserved: u32,
}
crate::no_padding! {
    RowParts { rows, block_rows, parts, reserved }
}

impl RowParts {
    /// Distributes `rows` rows of `parts` parts over blocks of `threads` threads. Returns `None` if a number
    /// is 0, if a row has more parts than a block has threads, or if all rows together have 2^31 parts or
    /// more.
    pub fn new(rows: usize, parts: usize, threads: u32) -> Option<Self> {
        let all = rows.checked_mul(parts).filter(|all| *all > 0 && *all < 1 << 31)?;
        let (rows, parts) = ((all / parts) as u32, FastDiv::new(parts as u32)?);
        let block_rows = threads / parts.get();
        (block_rows > 0).then_some(RowParts { rows, block_rows, parts, reserved: 0 })
    }

    /// Number of blocks of the launch.
    pub const fn blocks(&self) -> u32 {
        self.rows.div_ceil(self.block_rows)
    }
}

#[cfg(test)]
mod tests {
    use super::RowParts;

    #[test]
    fn blocks_have_whole_rows_and_all_of_them() {
        for (rows, parts, block_rows, blocks) in
            [(1, 1, 256, 1), (256, 1, 256, 1), (257, 1, 256, 2), (100, 12, 21, 5), (3, 256, 1, 3)]
        {
            let dealt = RowParts::new(rows, parts, 256).expect("valid");
            assert_eq!((dealt.block_rows, dealt.blocks()), (block_rows, blocks), "{rows} x {parts}");
        }
        for (rows, parts) in [(0, 1), (1, 0), (1, 257), (1 << 30, 2), (usize::MAX, 2)] {
            assert_eq!(RowParts::new(rows, parts, 256), None, "{rows} x {parts}");
        }
    }
}
