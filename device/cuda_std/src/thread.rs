//! The position of a thread in its block, the position of the block in the grid, and the sizes of block and
//! grid.
use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::nvptx;

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.exit"]
    fn nvvm_exit() -> !;
}

macro_rules! special_registers {
    ($($name:ident: $register:literal $intrinsic:ident;)*) => {
        $(
            #[doc = concat!("`", $register, "`.")]
            #[inline(always)]
            #[gpu_only]
            pub fn $name() -> u32 {
                // SAFETY: the instruction has no preconditions.
                unsafe { nvptx::$intrinsic() as u32 }
            }
        )*
    };
}
special_registers! {
    thread_idx_x: "%tid.x" _thread_idx_x;
    thread_idx_y: "%tid.y" _thread_idx_y;
    thread_idx_z: "%tid.z" _thread_idx_z;
    block_dim_x: "%ntid.x" _block_dim_x;
    block_dim_y: "%ntid.y" _block_dim_y;
    block_dim_z: "%ntid.z" _block_dim_z;
    block_idx_x: "%ctaid.x" _block_idx_x;
    block_idx_y: "%ctaid.y" _block_idx_y;
    block_idx_z: "%ctaid.z" _block_idx_z;
    grid_dim_x: "%nctaid.x" _grid_dim_x;
    grid_dim_y: "%nctaid.y" _grid_dim_y;
    grid_dim_z: "%nctaid.z" _grid_dim_z;
}

/// `%laneid`: the index of this thread in its warp. ptxas reads this register again rather than keep its
/// value for long.
#[inline(always)]
#[gpu_only]
pub fn lane_id() -> u32 {
    let lane;
    // SAFETY: the instruction has no preconditions.
    unsafe { core::arch::asm!("mov.u32 {}, %laneid;", out(reg32) lane, options(pure, nomem, nostack)) }
    lane
}

/// The index of this thread along x, counted over the grid.
#[inline(always)]
pub fn index_1d() -> u32 {
    block_idx_x() * block_dim_x() + thread_idx_x()
}

/// `exit`: ends this thread. A thread that waits for this thread at a barrier waits forever.
#[inline(always)]
#[gpu_only]
pub fn exit() -> ! {
    // SAFETY: the instruction has no preconditions.
    unsafe { nvvm_exit() }
}
