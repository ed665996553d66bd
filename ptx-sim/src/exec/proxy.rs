//! Proxies: what `wgmma` and bulk copies see of shared memory that others wrote.
//!
//! Order alone does not show them what the generic proxy wrote: it takes a `fence.proxy.async` between, by
//! whoever knows of the write. What the fence has shown is handed on by barriers and mbarriers.

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
