//! A parser of PTX and a SIMT simulator, which runs GPU kernels on any machine and checks them while they
//! run.
//!
//! The simulator executes, warp by warp, all PTX that rustc and LLVM emit for `sm_80` and `sm_89`, and inline
//! assembly: `mma`, `ldmatrix`, `cp.async`, barriers, named barriers, mbarriers, shuffles, votes, atomics,
//! calls. For `sm_90a`, it executes `wgmma`, TMA copies with tensor maps ([`TensorMap`]), `setmaxnreg` and
//! proxy fences. If an entry contains any other instruction, a launch of the entry returns an error that
//! names the line. The simulator skips no text. Each of the following checks is on by default ([`Options`]):
//!
//! * **memory**: bounds, alignment, freed memory, addresses of the wrong state space;
//! * **races**: accesses of shared and device memory, between warps and between lanes, that no barrier,
//!   mbarrier, fence, release or acquire orders; accesses to copies in flight;
//! * **initialisation**: registers, shared, local and device memory;
//! * **asynchrony**: conflicts with products and TMA copies in flight; loads and stores without a wait;
//!   missing proxy fences;
//! * **synchronisation**: divergent barriers and `.sync` instructions, missing participants, wrong counts;
//! * **progress**: deadlocks and endless loops, with the position of each warp;
//! * **launches** against the limits of a [`Profile`], such as shared memory without opt-in; instructions
//!   against the module's own `.target` and `.version`.
//!
//! Races are detected by vector clocks, so one schedule usually suffices. [`Options::seed`] and
//! [`Options::completion`] change the schedule and the time at which asynchronous copies complete.
//!
//! ```
//! use ptx_sim::{Gpu, Kind, Launch, Module, Options, Profile};
//!
//! let text = ".version 7.8\n.target sm_80\n.address_size 64
//!     .visible .entry twice(.param .u64 x) {
//!         .reg .b64 %rd<4>; .reg .b32 %r<3>;
//!         ld.param.u64 %rd1, [x]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
//!         ld.global.u32 %r2, [%rd3]; shl.b32 %r2, %r2, 1; st.global.u32 [%rd3], %r2; ret;
//!     }";
//! let module = Module::parse(text)?;
//! let mut gpu = Gpu::new(Profile::by_name("l4")?, Options::default());
//! let x = gpu.alloc("x", 32 * 4, 256)?;
//! gpu.fill(x, 1, 32 * 4)?;
//! let params = x.to_le_bytes();
//! let mut launch = Launch::new([1; 3], [32, 1, 1], &params);
//! let outcome = gpu.launch(&module, "twice", &launch)?;
//! assert!(outcome.reports.is_empty());
//! let mut word = [0; 4];
//! gpu.read(x, &mut word)?;
//! assert_eq!(word, [2; 4]);
//!
//! launch.block = [64, 1, 1]; // twice as many threads as elements
//! let outcome = gpu.launch(&module, "twice", &launch)?;
//! assert_eq!(outcome.reports[0].kind, Kind::OutOfBounds);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod ast;
mod cfg;
mod clocks;
mod coverage;
mod debug;
mod decode;
mod error;
mod exec;
mod gpu;
mod launch;
mod lex;
mod memory;
mod mma;
pub mod mutate;
mod op;
mod options;
mod outcome;
mod parse;
mod profile;
mod regs;
mod report;
pub mod script;
mod shadow;
mod stamp;
mod tensor_map;
mod wgmma;

pub use ast::{Entry, Module, Space};
pub use coverage::Coverage;
pub use decode::Unsupported;
pub use error::{LaunchError, MemoryError, ParseError};
pub use exec::Progress;
pub use gpu::Gpu;
pub use launch::Launch;
pub use options::{Completion, MmaArch, MmaMode, Options};
pub use outcome::Outcome;
pub use profile::Profile;
pub use report::{Address, Kind, Place, Report, Side, SourceLine};
pub use tensor_map::{ElementType, Swizzle, TensorMap, TensorMapError};
