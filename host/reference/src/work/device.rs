//! A problem on a device. Tests and the program `ferroflash` use every driver only through this file.
use super::{Binder, Buffer, Input, LaunchOptions, Work, Written};
use ferroflash::driver::{Enqueue, Harness};
use ferroflash::kernels::Contract;
use ferroflash::plan::{AnyPlan, AnyRequest, ScratchBytes};
use ferroflash::request::Scratch;
use ferroflash::{Attention, Error};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// A problem whose inputs are in device memory. Methods return the errors of the driver, of planning, of
/// launching and of waiting.
pub struct OnDevice<'a, D: Harness> {
    pub(super) attention: &'a Attention<D>,
    work: &'a dyn Work,
    config: Option<&'a str>,
    wants_lse: bool,
    inputs: Vec<(String, D::Buffer)>,
    /// Content of the outputs before each launch.
    before: Vec<Buffer>,
    workspace: Option<(D::Buffer, u64)>,
    counters: Option<(D::Buffer, u64)>,
    /// The plan of the first launch; later launches bind to it.
    plan: Cell<Option<AnyPlan>>,
    stream: D::Stream,
}

/// Outputs of one launch in device memory.
pub struct Outputs<D: Harness>(Vec<(D::Buffer, usize)>);

impl<'a, D: Harness> OnDevice<'a, D> {
    /// Copies the inputs to the device, and allocates the workspace and counters that the kernel can use.
    /// `config` names the kernel to run; without it, the planner chooses.
    pub fn new(
        attention: &'a Attention<D>,
        work: &'a dyn Work,
        config: Option<&'a str>,
    ) -> Result<Self, Error> {
        let driver = attention.driver();
        let inputs = work.inputs().into_iter().map(|Input { name, bytes, period }| {
            let mut buffer = driver.allocate_named(&name, bytes)?;
            for at in (0..bytes).step_by(period.len().max(1)) {
                driver.upload_at(&mut buffer, at, &period[..period.len().min(bytes - at)])?;
            }
            Ok((name, buffer))
        });
        let mut device = OnDevice {
            inputs: inputs.collect::<Result<_, Error>>()?,
            before: work.outputs(),
            attention,
            work,
            config,
            wants_lse: true,
            workspace: None,
            counters: None,
            plan: Cell::new(None),
            stream: driver.stream()?,
        };
        device.compute_inputs()?;
        device.make_room()?;
        Ok(device)
    }

    /// Runs the launch that computes inputs, if there is one.
    fn compute_inputs(&self) -> Result<(), Error> {
        let inputs = self.addresses();
        let Some(request) = self.work.before(&mut Binder::at(Some(&inputs), None)) else { return Ok(()) };
        let plan = self.attention.plan(&request)?;
        // SAFETY: every view describes one buffer of this driver, and the buffer has the size of the view.
        // The buffers live until the launch has run, and no other work uses them.
        unsafe { self.attention.launch(&plan, &request, &self.stream)? };
        self.wait()
    }

    /// Returns the addresses of the inputs.
    fn addresses(&self) -> Vec<u64> {
        self.inputs.iter().map(|(_, buffer)| self.attention.driver().address(buffer)).collect()
    }

    /// Makes launches without LSE.
    #[must_use]
    pub fn without_lse(self) -> Self {
        OnDevice { wants_lse: false, ..self }
    }

    /// Changes the kernel.
    pub(crate) fn configure(&mut self, config: Option<&'a str>) -> Result<(), Error> {
        (self.config, self.workspace, self.counters) = (config, None, None);
        self.make_room()
    }

    /// Allocates the scratch memory with which `config` is fastest. The workspace stays uninitialised,
    /// because kernels write it before they read it.
    fn make_room(&mut self) -> Result<(), Error> {
        self.plan.set(None);
        let driver = self.attention.driver();
        // The outputs are allocated later. If the request has invalid values, the launch reports them.
        let planned = self.attention.plan(&self.asked(None, Scratch::Fastest));
        let needs = planned.map(|plan| plan.scratch_bytes()).unwrap_or_default();
        let ScratchBytes { workspace, counters } = needs;
        if workspace > 0 {
            self.workspace = Some((driver.allocate_named("workspace", workspace as usize)?, workspace));
        }
        if counters > 0 && self.work.wants_counters() {
            let mut buffer = driver.allocate_named("counters", counters as usize)?;
            driver.fill(&mut buffer, 0)?;
            self.counters = Some((buffer, counters));
        }
        Ok(())
    }

    /// Returns the kernel that launches will run.
    pub fn kernel(&self) -> Result<&'static Contract, Error> {
        Ok(self.attention.plan(&self.asked(None, self.scratch()))?.contract())
    }

    /// Returns whether launches will run this kernel, perhaps beside others.
    pub fn runs(&self, symbol: &str) -> Result<bool, Error> {
        let plan = self.attention.plan(&self.asked(None, self.scratch()))?;
        Ok(plan.kernels().any(|kernel| kernel.symbol == symbol))
    }

    /// Returns the allocated scratch memory.
    fn scratch(&self) -> Scratch {
        let driver = self.attention.driver();
        let size = |memory: &Option<(D::Buffer, u64)>| memory.as_ref().map_or(0, |(_, bytes)| *bytes);
        let place = |(buffer, _): &(D::Buffer, u64)| driver.address(buffer);
        let bytes = ScratchBytes { workspace: size(&self.workspace), counters: size(&self.counters) };
        bytes.at(self.workspace.as_ref().map_or(0, place), self.counters.as_ref().map(place))
    }

    fn asked(&self, outputs: Option<&[u64]>, scratch: Scratch) -> AnyRequest<'a> {
        let options = LaunchOptions { wants_lse: self.wants_lse, config: self.config, scratch };
        self.work.request(&mut Binder::at(Some(&self.addresses()), outputs), options)
    }

    /// Overwrites inputs of these names.
    pub fn change(&mut self, inputs: impl IntoIterator<Item = Input>) -> Result<(), Error> {
        let driver = self.attention.driver();
        inputs.into_iter().try_for_each(|Input { name, period, .. }| {
            let own = self.inputs.iter_mut().filter(|(own, _)| *own == name);
            own.into_iter().try_for_each(|(_, buffer)| driver.upload(buffer, &period))
        })
    }

    /// Returns the plan of the launches; `None` before the first launch.
    pub fn plan(&self) -> Option<AnyPlan> {
        self.plan.get()
    }

    /// Uses `plan` for later launches. If `plan` is `None`, the next launch makes a new plan.
    pub(crate) fn use_plan(&self, plan: Option<AnyPlan>) {
        self.plan.set(plan);
    }

    /// Allocates outputs with their content before a launch.
    pub fn outputs(&self) -> Result<Outputs<D>, Error> {
        let driver = self.attention.driver();
        let outputs = self.before.iter().map(|(name, bytes)| {
            let mut buffer = driver.allocate_named(name, bytes.len())?;
            driver.upload(&mut buffer, bytes)?;
            Ok((buffer, bytes.len()))
        });
        Ok(Outputs(outputs.collect::<Result<_, Error>>()?))
    }

    /// Returns the request and its plan.
    pub(super) fn planned(&self, outputs: &Outputs<D>) -> Result<(AnyRequest<'a>, AnyPlan), Error> {
        let driver = self.attention.driver();
        let addresses: Vec<_> = outputs.0.iter().map(|(buffer, _)| driver.address(buffer)).collect();
        let asked = self.asked(Some(&addresses), self.scratch());
        let plan = match self.plan.get() {
            Some(plan) => plan,
            None => self.attention.plan(&asked)?,
        };
        self.plan.set(Some(plan));
        Ok((asked, plan))
    }

    /// Returns the stream of the launches.
    pub(super) fn stream(&self) -> &D::Stream {
        &self.stream
    }

    /// Enqueues a launch.
    pub fn launch(&self, outputs: &Outputs<D>) -> Result<(), Error> {
        let (asked, plan) = self.planned(outputs)?;
        // SAFETY: every view describes one buffer of this driver, and the buffer has the size of the view. A
        // buffer is freed only after the launch has run. Only this launch uses these outputs, and nothing
        // writes the inputs.
        unsafe { self.attention.launch(&plan, &asked, &self.stream) }
    }

    /// Waits for all launches.
    pub fn wait(&self) -> Result<(), Error> {
        self.attention.driver().synchronize(&self.stream)
    }

    /// Copies the outputs of a finished launch to the host.
    pub fn written(&self, outputs: &Outputs<D>) -> Result<Written, Error> {
        let read = |buffer: &D::Buffer, bytes: usize| {
            let mut all = vec![0; bytes];
            self.attention.driver().download(buffer, &mut all).map(|()| all)
        };
        let counters = self.counters.as_ref().map(|(buffer, bytes)| read(buffer, *bytes as usize));
        let plan = self.plan.get();
        Ok(Written {
            entry: plan.map_or("none", |plan| plan.contract().symbol),
            kernels: plan.iter().flat_map(|plan| plan.kernels()).map(|kernel| kernel.symbol).collect(),
            workspace: self.workspace.as_ref().map_or(0, |(_, bytes)| *bytes),
            reason: plan.map_or("none", |plan| plan.reason()),
            outputs: outputs
                .0
                .iter()
                .map(|(buffer, bytes)| read(buffer, *bytes))
                .collect::<Result<_, _>>()?,
            counters: counters.transpose()?.unwrap_or_default(),
        })
    }

    /// Launches once and returns the outputs.
    pub fn run(&self) -> Result<Written, Error> {
        let outputs = self.outputs()?;
        self.launch(&outputs)?;
        self.wait()?;
        self.written(&outputs)
    }

    /// Runs every round of the work in order, with one plan.
    pub fn run_all(&mut self) -> Result<Vec<Written>, Error> {
        let rounds = (0..self.work.rounds()).map(|round| {
            self.change(self.work.changes(round))?;
            self.run()
        });
        rounds.collect()
    }

    /// Runs every round of the work by replaying one launch, captured as a graph.
    pub fn replay_all(&mut self) -> Result<Vec<Written>, Error> {
        let (driver, mut outputs) = (self.attention.driver(), self.outputs()?);
        let (asked, plan) = self.planned(&outputs)?;
        self.attention.load(&plan)?;
        let (attention, stream) = (self.attention, driver.stream()?);
        let (work, before, mut written) = (self.work, self.work.outputs(), vec![]);
        // SAFETY: as in `launch`, for each round: this function waits for a round before it changes anything.
        let launch = &mut || unsafe { attention.launch(&plan, &asked, &stream) };
        let then = &mut |replay: &mut Enqueue<'_>| {
            for round in 0..work.rounds() {
                self.change(work.changes(round))?;
                let all = outputs.0.iter_mut().zip(&before);
                all.into_iter().try_for_each(|((to, _), (_, bytes))| driver.upload(to, bytes))?;
                replay()?;
                driver.synchronize(&stream)?;
                written.push(self.written(&outputs)?);
            }
            Ok(())
        };
        // SAFETY: as in `launch`. The stream belongs to the driver, and this function waits for each round.
        unsafe { driver.with_graph(&stream, launch, then) }.map(|()| written)
    }

    /// Like [`OnDevice::run`], but also returns two durations: the time to load the kernel on the host, and
    /// the time of the launch on the device.
    pub fn run_timed(&self) -> Result<(Written, [Duration; 2]), Error> {
        let outputs = self.outputs()?;
        let (_, plan) = self.planned(&outputs)?;
        let start = Instant::now();
        self.attention.load(&plan)?;
        let load = start.elapsed();
        let kernel = self.time(&outputs, 1)?;
        self.wait()?;
        Ok((self.written(&outputs)?, [load, kernel]))
    }

    /// Returns the device time of `launches` consecutive launches. The launches share their outputs. The
    /// kernel is loaded before them.
    pub(crate) fn time(&self, outputs: &Outputs<D>, launches: usize) -> Result<Duration, Error> {
        let (asked, plan) = self.planned(outputs)?;
        self.attention.load(&plan)?;
        self.attention.driver().time(&self.stream, &mut |stream| {
            // SAFETY: as in `launch`; one stream orders the launches.
            (0..launches).try_for_each(|_| unsafe { self.attention.launch(&plan, &asked, stream) })
        })
    }

    /// Launches `launches` times, and uses the streams in turn. Each launch has its own outputs. Waits for
    /// all streams after every `every` launches and after the last launch. Returns the number of launches
    /// whose outputs differ from `expected` in any bit.
    pub fn soak(streams: &[Self], expected: &Written, launches: usize, every: usize) -> Result<usize, Error> {
        let turns = || streams.iter().cycle().take(launches);
        let outputs = turns().map(Self::outputs).collect::<Result<Vec<_>, _>>()?;
        let wait = || streams.iter().try_for_each(Self::wait);
        for (done, (device, outputs)) in turns().zip(&outputs).enumerate() {
            device.launch(outputs)?;
            if (done + 1).is_multiple_of(every) {
                wait()?;
            }
        }
        wait()?;
        let mut differing = 0;
        for (device, outputs) in turns().zip(&outputs) {
            differing += usize::from(device.written(outputs)? != *expected);
        }
        Ok(differing)
    }
}
