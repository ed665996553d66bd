//! Tests that every dtype, head dim and mask has a varlen kernel on every card.

use ferroflash::{kernels::*, plan::*, request::*, *};

const WINDOW: Mask = Mask::Window { left: Some(1023), right: Some(0) };

#[test]
fn every_type_head_dim_and_mask_has_a_varlen_kernel_on_every_card() {
    for (_, card) in Capabilities::PROFILES {
        for dtype in [DType::F16, DType::Bf16] {
            for head_dim in (8..=MAX_HEAD_DIM).step_by(8) {
                for mask in [Mask::Full, Mask::Causal, WINDOW] {
                    let problem = Problem::new(dtype, 3, 100, 4, head_dim).mask(mask).varlen(Some([250; 2]));
                    let kernel = supports(&problem, card).unwrap_or_else(|e| panic!("{problem}: {e}"));
                    let entry = entry(kernel.symbol).expect("in the table");
                    assert_eq!((entry.family(), entry.dtype), ("packed", dtype), "{problem}");
                    assert!(
                        entry.head_dim as usize >= head_dim && entry.head_dim <= 2 * head_dim.max(16) as u32
                    );
                }
            }
        }
    }
}
