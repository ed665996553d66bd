//! Proxies: the writes to shared memory that `wgmma` and bulk copies see.
//!
//! Order alone does not make writes of the generic proxy visible to `wgmma` and bulk copies. A
//! `fence.proxy.async` makes a write visible if the agent that executes the fence knows the write. Barriers
//! and mbarriers hand this visibility over.

use super::{Block, warp::Warp};
use crate::{clocks::merge, op::Proxy};

impl<'a> Block<'a> {
    pub(super) fn proxy_fence(&mut self, warp: &mut Warp<'a>, proxy: Proxy) {
        let (index, known) = (warp.index, self.clocks.row(warp.index).to_vec());
        self.mbarriers.values_mut().for_each(|bar| bar.show(&known));
        if proxy == Proxy::Async {
            merge(&mut self.views[index].proxy, &known);
        }
        self.clocks.tick(index, warp.site);
    }
}
