//! Executes calls of device functions and of the device runtime.

use super::{
    Block,
    block::Stop,
    warp::{Path, Status, Warp},
};
use crate::{
    decode::SHARED_BASE,
    op::{Call, Callee},
    regs::{FULL, R, lanes},
    report::{Address, Kind},
};

/// Largest nesting depth of calls.
const MAX_FRAMES: usize = 64;
/// Largest number of bytes of a text that `printf` reads.
const MAX_TEXT: usize = 4096;

impl<'a> Block<'a> {
    pub(super) fn call(&mut self, warp: &mut Warp<'a>, call: &'a Call, mask: u32) {
        match &call.target {
            Callee::Function(function) => self.enter(warp, call, *function, mask),
            Callee::Pointer(address) => self.call_pointer(warp, call, *address, mask),
            Callee::Panic(function) => self.panicked(warp, call, function, mask),
            Callee::Vprintf => self.print(warp, call, mask),
            Callee::AssertFail => {
                let message = self.text_argument(warp, call, 0, mask);
                self.report(warp, Kind::Trap, mask, None, format!("device assertion failed: {message}"));
                self.stop = Some(Stop::Reported);
            }
            Callee::Unknown(name) => {
                self.refuse(warp, format!("function {name} has no body in this module"));
            }
        }
    }

    fn refuse(&mut self, warp: &Warp<'a>, reason: String) {
        let place = super::trace::place(self.context, warp.site);
        let (line, text) = (place.ptx_line, place.instruction);
        self.stop = Some(Stop::Error(crate::LaunchError::Unsupported { line, text, reason }));
    }

    fn enter(&mut self, warp: &mut Warp<'a>, call: &'a Call, function: usize, mask: u32) {
        if warp.frames.len() >= MAX_FRAMES {
            self.report(warp, Kind::Runaway, mask, None, format!("calls nest deeper than {MAX_FRAMES}"));
            self.stop = Some(Stop::Reported);
            return;
        }
        let caller = warp.frames.last().map_or(0, |frame| frame.base);
        warp.push_frame(self.context, self.id, function, mask, Some(call));
        let callee = warp.frames.last().map_or(0, |frame| frame.base);
        let params = &self.context.program.functions[function].params;
        copy_frame(warp, mask, call.args.iter().zip(params), caller, callee);
    }

    /// Calls functions through pointers, which may differ between lanes. The lanes that call the first lane's
    /// function run now. The other lanes execute this instruction again later.
    fn call_pointer(&mut self, warp: &mut Warp<'a>, call: &'a Call, address: R, mask: u32) {
        let addresses = *warp.regs().row64(address, mask);
        let Some(first) = lanes(mask).next() else { return };
        let together = lanes(mask).filter(|&lane| addresses[lane] == addresses[first]);
        let together = together.fold(0, |all, lane| all | 1 << lane);
        let Some(&function) = self.context.program.addresses.get(&addresses[first]) else {
            let place = Address { buffer: "code".into(), offset: addresses[first] as i64 };
            let message = "a call through a pointer that is not the address of a function".into();
            self.report(warp, Kind::WrongSpace, together, Some(place), message);
            self.stop = Some(Stop::Reported);
            return;
        };
        let callee = &self.context.program.functions[function];
        let sizes = |places: &[(u32, u32)]| places.iter().map(|&(_, bytes)| bytes).collect::<Vec<_>>();
        if [sizes(&call.args), sizes(&call.returns)] != [sizes(&callee.params), sizes(&callee.returns)] {
            return self.refuse(warp, "the function at the pointer's address has other parameters".into());
        }
        if together != mask
            && let Some(path) = warp.frames.last_mut().and_then(|frame| frame.paths.last_mut())
        {
            let again = Path { pc: path.pc - 1, rejoin: path.pc, mask: mask & !together, waits: None };
            warp.frames.last_mut().into_iter().for_each(|frame| frame.paths.push(again));
        }
        self.enter(warp, call, function, together);
    }

    /// Ends the launch because of a panic. The report shows the position in Rust's `Location`, which is the
    /// last argument.
    fn panicked(&mut self, warp: &mut Warp<'a>, call: &'a Call, function: &str, mask: u32) {
        let lane = mask.trailing_zeros() as usize & 31;
        let argument = |at: usize| call.args.get(at).map(|&(offset, _)| self.frame_u64(warp, offset, lane));
        let place = call.args.len().checked_sub(1).and_then(argument);
        let place = place.and_then(|at| self.location(warp, at, lane)).unwrap_or_default();
        let name = format!("{:#}", rustc_demangle::demangle(function));
        let why = match (argument(0), argument(1), call.args.len()) {
            (Some(index), Some(len), 3) if name.ends_with("panic_bounds_check") => {
                format!("index out of bounds: the len is {len} but the index is {index}")
            }
            _ => name,
        };
        self.report(warp, Kind::Trap, mask, None, format!("panicked{place}: {why}"));
        self.stop = Some(Stop::Reported);
    }

    /// The text ` at file:line:column` for a `core::panic::Location`, which contains a string with its length
    /// and two numbers.
    fn location(&self, warp: &Warp<'a>, at: u64, lane: usize) -> Option<String> {
        let field = |offset: u64, bytes: usize| {
            let found = self.peek(warp, at + offset, lane, bytes)?;
            Some(found.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
        };
        let (text, length, line, column) = (field(0, 8)?, field(8, 8)?, field(16, 4)?, field(20, 4)?);
        let length = usize::try_from(length).ok().filter(|&length| length <= MAX_TEXT)?;
        let file = String::from_utf8(self.peek(warp, text, lane, length)?).ok()?;
        Some(format!(" at {file}:{line}:{column}"))
    }

    /// Leaves the running frame, in which no lanes are left.
    pub(super) fn leave(&mut self, warp: &mut Warp<'a>) {
        let Some(frame) = warp.frames.pop() else { return };
        let Some(caller) = warp.frames.last() else {
            warp.status = Status::Done;
            return;
        };
        if let Some(call) = frame.call {
            let returns = &self.context.program.functions[frame.function].returns;
            let base = caller.base;
            let mask = frame.mask & warp.live;
            copy_frame(warp, mask, returns.iter().zip(&call.returns), frame.base, base);
        }
    }

    fn frame_u64(&self, warp: &Warp<'a>, offset: u32, lane: usize) -> u64 {
        let base = warp.frames.last().map_or(0, |frame| frame.base);
        let at = lane * warp.local_size + (base + offset) as usize;
        let mut bytes = [0; 8];
        if let Some(source) = warp.local.get(at..at + 8) {
            bytes.copy_from_slice(source);
        }
        u64::from_le_bytes(bytes)
    }

    /// Reads `count` bytes at a generic address, without checks.
    fn peek(&self, warp: &Warp<'a>, at: u64, lane: usize, count: usize) -> Option<Vec<u8>> {
        let within = (at & ((1 << 60) - 1)) as usize;
        match at >> 60 {
            1 => {
                let at = within.checked_sub(SHARED_BASE as usize)?;
                self.shared.get(at..at + count).map(<[u8]>::to_vec)
            }
            2 => warp
                .local
                .get(lane * warp.local_size + within..)
                .and_then(|rest| rest.get(..count))
                .map(<[u8]>::to_vec),
            _ => {
                let (allocation, offset) = self.context.memory.resolve(at, count).ok()?;
                let mut bytes = vec![0; count];
                allocation.load(offset, &mut bytes);
                Some(bytes)
            }
        }
    }

    fn text(&self, warp: &Warp<'a>, at: u64, lane: usize) -> String {
        let bytes = (0..MAX_TEXT as u64)
            .map_while(|i| self.peek(warp, at + i, lane, 1).map(|byte| byte[0]).filter(|&byte| byte != 0));
        String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
    }

    fn text_argument(&self, warp: &Warp<'a>, call: &Call, index: usize, mask: u32) -> String {
        let lane = mask.trailing_zeros() as usize & 31;
        call.args
            .get(index)
            .map_or(String::new(), |&(offset, _)| self.text(warp, self.frame_u64(warp, offset, lane), lane))
    }

    fn print(&mut self, warp: &mut Warp<'a>, call: &Call, mask: u32) {
        let (Some(&(format, _)), Some(&(values, _))) = (call.args.first(), call.args.get(1)) else { return };
        for lane in lanes(mask) {
            let template = self.text(warp, self.frame_u64(warp, format, lane), lane);
            let mut at = self.frame_u64(warp, values, lane);
            let line = format_text(&template, |wide, is_text| {
                let size = if wide { 8 } else { 4 };
                at = at.next_multiple_of(size);
                let bytes = self.peek(warp, at, lane, size as usize).unwrap_or_default();
                at += size;
                let mut value = [0; 8];
                value[..bytes.len()].copy_from_slice(&bytes);
                let value = u64::from_le_bytes(value);
                (value, if is_text { self.text(warp, value, lane) } else { String::new() })
            });
            self.output += &line;
        }
        if let Some(&(offset, _)) = call.returns.first() {
            let base = warp.frames.last().map_or(0, |frame| frame.base);
            for lane in lanes(mask) {
                let at = lane * warp.local_size + (base + offset) as usize;
                warp.local[at..at + 4].fill(0);
                warp.local_written[at..at + 4].fill(true);
            }
        }
    }
}

/// For each lane, copies between two frames. The pairs are offsets (from, to).
fn copy_frame<'p>(
    warp: &mut Warp<'_>,
    mask: u32,
    pairs: impl Iterator<Item = (&'p (u32, u32), &'p (u32, u32))>,
    from: u32,
    to: u32,
) {
    let size = warp.local_size;
    for (&(source, bytes), &(destination, capacity)) in pairs {
        let bytes = bytes.min(capacity) as usize;
        for lane in lanes(mask & FULL) {
            let source = lane * size + (from + source) as usize;
            let destination = lane * size + (to + destination) as usize;
            warp.local.copy_within(source..source + bytes, destination);
            warp.local_written.copy_within(source..source + bytes, destination);
        }
    }
}

/// Formats text like C's `printf`: integers, floats, characters, text and pointers. `next(wide, is_text)`
/// returns the next argument.
fn format_text(template: &str, mut next: impl FnMut(bool, bool) -> (u64, String)) -> String {
    let mut out = String::new();
    let mut rest = template.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (mut long, mut digits, mut precision) = (false, String::new(), None);
        for c in rest.by_ref() {
            match c {
                '%' => out.push('%'),
                'l' | 'z' | 'j' => {
                    long = true;
                    continue;
                }
                '.' => {
                    precision = Some(String::new());
                    continue;
                }
                '0'..='9' | '-' | '+' | ' ' | '#' | 'h' => {
                    precision.as_mut().unwrap_or(&mut digits).push(c);
                    continue;
                }
                's' => out += &next(true, true).1,
                'c' => out.extend(char::from_u32(next(false, false).0 as u32)),
                'p' => out += &format!("{:#x}", next(true, false).0),
                'f' | 'e' | 'g' => {
                    let places =
                        precision.as_ref().and_then(|text| text.parse().ok()).unwrap_or(6usize).min(40);
                    let value = f64::from_bits(next(true, false).0);
                    let text = if c == 'f' { format!("{value:.places$}") } else { format!("{value:e}") };
                    out += &text;
                }
                'd' | 'i' => {
                    let value = next(long, false).0;
                    let value = if long { value as i64 } else { i64::from(value as i32) };
                    out += &pad(value.to_string(), &digits);
                }
                'u' => out += &pad(next(long, false).0.to_string(), &digits),
                'x' => out += &pad(format!("{:x}", next(long, false).0), &digits),
                'X' => out += &pad(format!("{:X}", next(long, false).0), &digits),
                'o' => out += &pad(format!("{:o}", next(long, false).0), &digits),
                other => out.push(other),
            }
            break;
        }
    }
    out
}

fn pad(text: String, digits: &str) -> String {
    let zero = digits.starts_with('0');
    let width =
        digits.trim_start_matches(['-', '+', ' ', '#', '0', 'h']).parse::<usize>().unwrap_or(0).min(256);
    match (zero, digits.starts_with('-')) {
        (true, _) => format!("{text:0>width$}"),
        (_, true) => format!("{text:<width$}"),
        _ => format!("{text:>width$}"),
    }
}
