//! Programmatic dependent launch: the kernel behind this one may begin early, and a kernel that began early
//! waits for the kernels before it.
use crate::Block;
use contract::{Kernel, Target};
use cuda_std::grid;

/// The kernels before this one have ended, and this thread sees what they wrote. Partial results can be read
/// only with this value.
#[derive(Clone, Copy)]
pub struct Ended(());

impl<K: Kernel> Block<K> {
    /// Waits until the kernels before this one have ended. A kernel that is not
    /// [`Dependent`](contract::Dependent) began after them, and does not wait.
    #[inline(always)]
    pub fn ended(&self) -> Ended {
        if K::START.is_early() {
            grid::wait()
        }
        Ended(())
    }

    /// Lets the next kernel of the stream begin, if it is [`Dependent`](contract::Dependent), as soon as all
    /// blocks have called this or have ended. Blocks of this kernel that have not begun begin first.
    #[inline(always)]
    pub fn launch_dependents(&self) {
        const {
            let has = matches!(K::TARGET, Target::From(90..) | Target::Exactly(90..));
            assert!(has, "GPUs have programmatic dependent launch since sm_90")
        }
        grid::launch_dependents()
    }
}
