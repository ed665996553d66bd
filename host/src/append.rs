//! New keys and values on their way into a cache: [`Append`] and its plan.
use crate::families::{Kernels, append as family};
use crate::request::{Request, sealed};
use crate::{Capabilities, Error, KvPages, Slots, TensorView, Tuning, validate};
use spec::Contract;

/// Puts the keys and values of new tokens to their places in a cache (`reshape_and_cache`): the row of token
/// `t` of `k` and `v` is copied to row `slots[t]` of the cache's pages, or skipped where there is no such
/// row. Two tokens of one launch with the same slot leave either's bytes, or some of both.
///
/// The cache has the tokens' type, or is e4m3: then it gets `x / scale`, rounded to nearest even, 448 where
/// that is more; NaN stays NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use = "a description of a launch does nothing by itself; plan and launch it"]
#[non_exhaustive]
pub struct Append {
    /// Keys of the tokens: `[1, tokens, heads, head_dim]`, f16 or bf16. There may be more rows than slots:
    /// those are not looked at.
    pub k: TensorView,
    /// Their values, of the same heads, head dim and type.
    pub v: TensorView,
    /// Written: where the tokens go. Rows that no slot names stay as they are.
    pub pages: KvPages,
    /// A place for each token.
    pub slots: Slots,
}

impl Append {
    /// As many tokens as there are slots.
    pub const fn new(k: TensorView, v: TensorView, pages: KvPages, slots: Slots) -> Self {
        Append { k, v, pages, slots }
    }
}

/// How an [`Append`] is launched. It serves every other one of the same types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendPlan {
    append: Append,
    launch: family::Launch,
    reason: &'static str,
}

/// Checks `append` and decides how it is launched on a device with these capabilities.
///
/// # Errors
/// [`Error::Invalid`] names the value that is wrong, [`Error::Unsupported`] the feature that this crate or
/// this device has not.
pub fn plan_append(append: &Append, capabilities: &Capabilities) -> Result<AppendPlan, Error> {
    validate::append::append(append)?;
    let (kernel, reason) = family::choose(append, capabilities)?;
    Ok(AppendPlan { append: *append, launch: family::launch(kernel, append)?, reason })
}

impl AppendPlan {
    /// The kernel: its symbol, threads and shared memory.
    pub fn contract(&self) -> &'static Contract {
        self.launch.contract()
    }

    /// Its blocks.
    pub const fn grid(&self) -> [u32; 3] {
        self.launch.grid
    }

    /// Why this kernel.
    pub const fn reason(&self) -> &'static str {
        self.reason
    }

    fn bind(&self, append: &Append) -> Result<family::Launch, Error> {
        if *append == self.append {
            return Ok(self.launch);
        }
        validate::append::append(append)?;
        let types = |append: &Append| [append.k.dtype, append.pages.keys.dtype].map(|dtype| dtype.name());
        if types(append) != types(&self.append) {
            let [tokens, cache] = types(&self.append);
            let expected = format_args!("the plan is for {tokens} tokens and an {cache} cache; make another");
            return Err(Error::invalid("append", types(append).join(" tokens, cache of "), expected));
        }
        family::launch(self.launch.kernel, append)
    }
}

impl Request for Append {
    type Plan = AppendPlan;
}

impl sealed::Request<AppendPlan> for Append {
    fn plan(&self, on: &Capabilities, _: &Tuning, _: u64) -> Result<AppendPlan, Error> {
        plan_append(self, on)
    }

    fn bind(&self, plan: &AppendPlan) -> Result<impl Kernels, Error> {
        plan.bind(self)
    }
}

impl sealed::Planned for AppendPlan {
    fn launches(&self) -> &impl Kernels {
        &self.launch
    }
}
