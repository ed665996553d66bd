//! The macro that defines driver functions, and the functions of devices and contexts.
use crate::state::{
    CAPTURING, Code, DEVICES, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, Kind, Object, Refusal, call,
    contexts, primary, refuse,
};
use std::ffi::{CStr, c_char, c_int, c_uint};

/// A pointer to which a function writes a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    pub fn set(self, value: T) -> Result<(), Refusal> {
        if self.0.is_null() {
            return refuse(INVALID_VALUE, "nowhere to write to");
        }
        // SAFETY: the pointer is not null; the caller of the driver promises that it may be written.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// A pointer from which a function reads.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub fn get(self) -> Result<T, Refusal> {
        if self.0.is_null() {
            return refuse(INVALID_VALUE, "nothing to read");
        }
        // SAFETY: the pointer is not null; the caller of the driver promises that it may be read.
        Ok(unsafe { self.0.read() })
    }
}

/// A string of the caller.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    pub fn new(text: *const c_char) -> Self {
        Text(text)
    }

    pub fn get(&self) -> String {
        // SAFETY: the caller of the driver promises that the string ends with NUL.
        unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned()
    }
}

/// Defines driver functions. Each function records its call, and fails by returning a [`Refusal`].
macro_rules! driver_functions {
    ($($name:ident |$state:ident $(, $arg:ident: $type:ty)*| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the driver's name")]
        #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
        pub extern "C" fn $name($($arg: $type),*) -> $crate::state::Code {
            $crate::state::call(stringify!($name), |$state| $body)
        }
    )*};
}
pub(crate) use driver_functions;

fn device(device: c_int) -> Result<c_int, Refusal> {
    if (0..DEVICES).contains(&device) {
        Ok(device)
    } else {
        refuse(INVALID_DEVICE, format!("device {device}"))
    }
}

/// Returns an attribute. Both devices have an H100's limits and 64 GiB of memory.
fn attribute(attribute: c_int) -> c_int {
    match attribute {
        16 => 132,
        38 => 50 << 20,
        75 => 9,
        81 => 233_472,
        82 => 65_536,
        97 => 232_448,
        // The attribute says that memory pools are supported.
        115 => 1,
        _ => 0,
    }
}

driver_functions! {
    cuInit |_state, _flags: c_uint| Ok(());
    cuDriverGetVersion |state, version: Out<c_int>| version.set(state.version);

    cuDeviceGetCount |_state, count: Out<c_int>| count.set(DEVICES);
    cuDeviceGet |_state, to: Out<c_int>, ordinal: c_int| to.set(device(ordinal)?);
    cuDeviceGetAttribute |_state, value: Out<c_int>, which: c_int, of: c_int| {
        device(of)?;
        value.set(attribute(which))
    };
    cuDeviceTotalMem_v2 |_state, bytes: Out<usize>, of: c_int| {
        device(of)?;
        bytes.set(64 << 30)
    };
    cuDevicePrimaryCtxRetain |state, context: Out<usize>, of: c_int| {
        state.retained[device(of)? as usize] += 1;
        context.set(primary(of))
    };
    cuDevicePrimaryCtxSetFlags_v2 |_state, of: c_int, _flags: c_uint| device(of).map(|_| ());
    cuDevicePrimaryCtxRelease_v2 |state, of: c_int| {
        let retained = &mut state.retained[device(of)? as usize];
        let Some(less) = retained.checked_sub(1) else {
            return refuse(INVALID_CONTEXT, format!("nobody holds the context of device {of}"));
        };
        *retained = less;
        Ok(())
    };

    cuCtxGetCurrent |_state, context: Out<usize>| {
        context.set(contexts(|all| all.last().copied().unwrap_or(0)))
    };
    cuCtxSetCurrent |_state, context: usize| {
        contexts(|all| {
            all.pop();
            all.extend((context != 0).then_some(context));
        });
        Ok(())
    };
    cuCtxPushCurrent_v2 |_state, context: usize| {
        contexts(|all| all.push(context));
        Ok(())
    };
    cuCtxPopCurrent_v2 |_state, context: Out<usize>| match contexts(Vec::pop) {
        Some(popped) => context.set(popped),
        None => refuse(INVALID_CONTEXT, "no context is current"),
    };
    cuCtxGetStreamPriorityRange |state, least: Out<c_int>, greatest: Out<c_int>| {
        state.current()?;
        least.set(0)?;
        greatest.set(-5)
    };
    cuCtxGetDevice |state, to: Out<c_int>| to.set((state.current()? - primary(0)) as c_int);
    cuCtxSynchronize |state| {
        let context = state.current()?;
        let captures = |object: &Object| object.kind == Kind::Stream { capturing: true };
        match state.objects.values().any(|object| object.context == context && captures(object)) {
            true => refuse(CAPTURING, "a stream of the context captures"),
            false => Ok(()),
        }
    };
}

/// Returns the name of a code. Names and texts of all codes have one form, so tests can distinguish them from
/// the real driver's.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(_code: Code, name: Out<*const c_char>) -> Code {
    call("cuGetErrorName", |_| name.set(c"FAKE".as_ptr()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(_code: Code, text: Out<*const c_char>) -> Code {
    call("cuGetErrorString", |_| text.set(c"of a fake driver".as_ptr()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, of: c_int) -> Code {
    call("cuDeviceGetName", |_| {
        let text = format!("fake device {}\0", device(of)?);
        if length < text.len() as c_int {
            return refuse(INVALID_VALUE, format!("{length} bytes are too few for a name"));
        }
        // SAFETY: the caller of the driver has room for `length` bytes, and `text` has no more.
        unsafe { name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
        Ok(())
    })
}
