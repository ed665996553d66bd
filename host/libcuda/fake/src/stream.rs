//! Streams, events, and graphs.
use crate::api::{Out, driver_functions};
use crate::state::{CAPTURING, INVALID_HANDLE, Kind, Refusal, State, refuse};
use std::ffi::{c_int, c_uint};

impl State {
    /// Returns whether a stream captures. The default streams (0, 1, 2) never capture.
    fn capturing(&mut self, stream: usize) -> Result<bool, Refusal> {
        if stream <= 2 {
            return self.current().map(|_| false);
        }
        Ok(self.object(stream, "stream")?.kind == Kind::Stream { capturing: true })
    }

    /// Refuses a wait for a stream that captures.
    fn waits(&mut self, stream: usize) -> Result<(), Refusal> {
        if self.capturing(stream)? { refuse(CAPTURING, "the stream captures") } else { Ok(()) }
    }

    fn capture(&mut self, stream: usize, capturing: bool) -> Result<(), Refusal> {
        if self.capturing(stream)? == capturing {
            return refuse(CAPTURING, if capturing { "it captures already" } else { "it does not capture" });
        }
        self.object(stream, "stream")?.kind = Kind::Stream { capturing };
        Ok(())
    }
}

driver_functions! {
    cuStreamCreate |state, stream: Out<usize>, _flags: c_uint| {
        stream.set(state.make(Kind::Stream { capturing: false })?)
    };
    cuStreamCreateWithPriority |state, stream: Out<usize>, _flags: c_uint, _priority: c_int| {
        stream.set(state.make(Kind::Stream { capturing: false })?)
    };
    cuStreamDestroy_v2 |state, stream: usize| state.destroy(stream, "stream");
    cuStreamSynchronize |state, stream: usize| state.waits(stream);
    cuStreamQuery |state, stream: usize| state.waits(stream);
    cuStreamWaitEvent |state, stream: usize, event: usize, _flags: c_uint| {
        state.capturing(stream)?;
        state.object(event, "event").map(|_| ())
    };
    cuStreamIsCapturing |state, stream: usize, status: Out<c_int>| {
        let capturing = state.capturing(stream)?;
        status.set(capturing.into())
    };
    cuStreamBeginCapture_v2 |state, stream: usize, _mode: c_int| state.capture(stream, true);
    cuStreamEndCapture |state, stream: usize, graph: Out<usize>| {
        state.capture(stream, false)?;
        graph.set(state.make(Kind::Graph)?)
    };
    cuGraphInstantiateWithFlags |state, exec: Out<usize>, graph: usize, _flags: u64| {
        state.object(graph, "graph")?;
        exec.set(state.make(Kind::Exec)?)
    };
    cuGraphLaunch |state, exec: usize, stream: usize| {
        state.object(exec, "launchable graph")?;
        state.waits(stream)
    };
    cuGraphExecDestroy |state, exec: usize| state.destroy(exec, "launchable graph");
    cuGraphDestroy |state, graph: usize| state.destroy(graph, "graph");

    cuEventCreate |state, event: Out<usize>, _flags: c_uint| event.set(state.make(Kind::Event)?);
    cuEventDestroy_v2 |state, event: usize| state.destroy(event, "event");
    cuEventRecord |state, event: usize, stream: usize| {
        state.capturing(stream)?;
        let of = state.objects.get(&stream).map(|stream| stream.context);
        let event = state.object(event, "event")?;
        if of.is_some_and(|of| of != event.context) {
            return refuse(INVALID_HANDLE, "the event and the stream are of two contexts");
        }
        Ok(())
    };
    cuEventQuery |state, event: usize| state.object(event, "event").map(|_| ());
    cuEventSynchronize |state, event: usize| state.object(event, "event").map(|_| ());
    cuEventElapsedTime |state, milliseconds: Out<f32>, start: usize, end: usize| {
        state.object(start, "event")?;
        state.object(end, "event")?;
        milliseconds.set(1.0)
    };
}
