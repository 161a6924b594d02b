//! Where the caller of a frame is, by the unwind table that its module has in memory (PT_GNU_EH_FRAME, in the format of the LSB's
//! "Exception Frames" and DWARF 5, 6.4). Only what [`area::rule_body`] can say: a frame that begins a distance from the stack
//! pointer or from rbp, or where a word at a distance from rbp says. The table is the program's own and may say anything:
//! each byte is read within the module, and from pages that can be read.

use super::area::{BY_BP, BY_SP, ROOT, THROUGH_BP, rule_body};
use super::sys;

const PAGE: u64 = sys::PAGE as u64;
/// A longer description of a function is not read to its end.
const MOST_BYTES: u64 = 64 << 10;

/// A module in memory, and its `.eh_frame_hdr`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Module {
    pub start: u64,
    pub end: u64,
    pub header: u64,
}

/// The header's sorted table: pairs of distances from the header, of a function and of its description.
#[derive(Clone, Copy)]
pub struct UnwindTable {
    module: Module,
    first: u64,
    count: u64,
}

const BP: u64 = 6;
const SP: u64 = 7;
const RETURN: u64 = 16;

/// DW_EH_PE_…: the lower half of an encoding is a type, the rest what it is relative to.
const DATAREL_SDATA4: u8 = 0x3b;
const UDATA4: u8 = 0x03;
const PCREL: u8 = 0x10;

/// The bytes of a module from a place on. What is not there is zero, and ends the reading.
struct Bytes {
    at: u64,
    end: u64,
    /// Where the page ends that is known to be readable.
    readable: u64,
    failed: bool,
}

impl Bytes {
    fn of(module: &Module, at: u64, end: u64) -> Bytes {
        let end = end.min(module.end).min(at.saturating_add(MOST_BYTES));
        Bytes { at, end, readable: at & !(PAGE - 1), failed: at < module.start || at > end }
    }

    fn u8(&mut self) -> u8 {
        if self.failed || self.at >= self.end {
            self.failed = true;
            return 0;
        }
        if self.at >= self.readable {
            let page = self.at & !(PAGE - 1);
            if !sys::is_readable(page) {
                self.failed = true;
                return 0;
            }
            self.readable = page + PAGE;
        }
        // SAFETY: within the module, in a page that can be read.
        let byte = unsafe { *(self.at as *const u8) };
        self.at += 1;
        byte
    }

    fn number(&mut self, bytes: u32) -> u64 {
        (0..bytes).fold(0, |sum, byte| sum | (self.u8() as u64) << (8 * byte))
    }

    fn signed(&mut self, bytes: u32) -> i64 {
        let unused = 64 - 8 * bytes;
        (self.number(bytes) << unused) as i64 >> unused
    }

    fn uleb(&mut self) -> u64 {
        self.leb().0
    }

    fn sleb(&mut self) -> i64 {
        let (sum, bits, last) = self.leb();
        match last & 0x40 != 0 && bits < 64 {
            true => (sum | u64::MAX << bits) as i64,
            false => sum as i64,
        }
    }

    /// A LEB128 number, its bits, and its last byte.
    fn leb(&mut self) -> (u64, u32, u8) {
        let (mut sum, mut bits) = (0, 0);
        loop {
            let byte = self.u8();
            if bits < 64 {
                sum |= ((byte & 0x7f) as u64) << bits;
            }
            bits += 7;
            if byte & 0x80 == 0 || self.failed {
                return (sum, bits, byte);
            }
        }
    }

    /// A pointer in one of the ways of `.eh_frame`; `is_length`: relative to nothing.
    fn pointer(&mut self, encoding: u8, is_length: bool) -> u64 {
        let at = self.at;
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.number(8),
            0x02 => self.number(2),
            0x03 => self.number(4),
            0x0a => self.signed(2) as u64,
            0x0b => self.signed(4) as u64,
            _ => {
                self.failed = true;
                0
            }
        };
        match encoding & 0xf0 {
            0 => value,
            _ if is_length => value,
            PCREL => at.wrapping_add(value),
            _ => {
                self.failed = true;
                0
            }
        }
    }
}

impl UnwindTable {
    /// None where it is of another kind than linkers make.
    pub fn of(module: Module) -> Option<UnwindTable> {
        let mut bytes = Bytes::of(&module, module.header, module.end);
        let [version, frame, count, table] = [bytes.u8(), bytes.u8(), bytes.u8(), bytes.u8()];
        if (version, count, table) != (1, UDATA4, DATAREL_SDATA4) {
            return None;
        }
        bytes.pointer(frame, false);
        let count = bytes.number(4);
        let (first, last) = (bytes.at, bytes.at + 8 * count);
        if bytes.failed || last > module.end {
            return None;
        }
        // Once for all searches in it.
        let readable = (first & !(PAGE - 1)..last).step_by(PAGE as usize).all(sys::is_readable);
        readable.then_some(UnwindTable { module, first, count })
    }

    /// A word of an entry.
    fn word(&self, index: u64, second: u64) -> u64 {
        // SAFETY: in the table, whose pages could be read.
        let distance = unsafe { ((self.first + 8 * index + 4 * second) as *const i32).read_unaligned() };
        self.module.header.wrapping_add(distance as i64 as u64)
    }

    /// How to find the caller of the frame that an address returns to ([`rule_body`]). None: by no rule of that kind.
    pub fn rule(&self, address: u64) -> Option<u64> {
        // The call, and not what comes after it, which may be another function.
        let place = address - 1;
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.word(middle, 0) <= place {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let entry = low.checked_sub(1)?;
        // A thread's first function may be entered without a call.
        if low < self.count && self.word(low, 0) == address && address.is_multiple_of(16) {
            return None;
        }
        let mut fde = Bytes::of(&self.module, self.word(entry, 1), self.module.end);
        let length = fde.number(4);
        if length == 0 || length >= 0xffff_fff0 {
            return None;
        }
        fde.end = fde.end.min(fde.at + length);
        let at = fde.at;
        let cie = at.wrapping_sub(fde.number(4));
        let cie = Cie::read(&self.module, cie)?;
        let start = fde.pointer(cie.encoding, false);
        let bytes = fde.pointer(cie.encoding, true);
        if fde.failed || place.wrapping_sub(start) >= bytes {
            return None;
        }
        if cie.has_augmentation {
            let more = fde.uleb();
            fde.at = fde.at.saturating_add(more);
        }
        let mut first = Row::default();
        let mut common = Bytes::of(&self.module, cie.program, cie.end);
        first.run(&mut common, (&cie, &Row::default()), u64::MAX)?;
        let mut row = first;
        row.run(&mut fde, (&cie, &first), place - start)?;
        row.body()
    }
}

/// The part that the descriptions of several functions share (DWARF's common information entry).
struct Cie {
    code: u64,
    data: i64,
    encoding: u8,
    has_augmentation: bool,
    program: u64,
    end: u64,
}

impl Cie {
    fn read(module: &Module, at: u64) -> Option<Cie> {
        let mut bytes = Bytes::of(module, at, module.end);
        let length = bytes.number(4);
        if length == 0 || length >= 0xffff_fff0 {
            return None;
        }
        bytes.end = bytes.end.min(bytes.at + length);
        let (number, version) = (bytes.number(4), bytes.u8());
        if number != 0 || !matches!(version, 1 | 3) {
            return None;
        }
        let mut augmentation = [0u8; 8];
        let mut len = 0;
        loop {
            match bytes.u8() {
                0 => break,
                letter => *augmentation.get_mut(len)? = letter,
            }
            len += 1;
        }
        let (code, data) = (bytes.uleb(), bytes.sleb());
        let register = if version == 1 { bytes.u8() as u64 } else { bytes.uleb() };
        let has_augmentation = augmentation[0] == b'z';
        if bytes.failed || register != RETURN || len > 0 && !has_augmentation {
            return None;
        }
        let mut encoding = 0;
        if has_augmentation {
            let more = bytes.uleb();
            let program = bytes.at.saturating_add(more);
            for letter in &augmentation[1..len] {
                match letter {
                    b'R' => encoding = bytes.u8(),
                    b'P' => {
                        let of = bytes.u8();
                        bytes.pointer(of & 0x0f, true);
                    }
                    b'L' => drop(bytes.u8()),
                    // Of a signal's frame: the address is no call's.
                    _ => return None,
                }
            }
            bytes.at = program;
        }
        let (program, end) = (bytes.at, bytes.end);
        (!bytes.failed).then_some(Cie { code, data, encoding, has_augmentation, program, end })
    }
}

/// Where something of the caller's is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Where it was.
    Same,
    /// So many bytes from the frame's beginning.
    At(i64),
    /// So many bytes from where rbp points to.
    FromBp(i64),
    Nowhere,
    Other,
}

#[derive(Clone, Copy)]
enum Frame {
    Register(u64, i64),
    /// A word so many bytes from rbp says it.
    ThroughBp(i64),
    Other,
}

#[derive(Clone, Copy)]
struct Row {
    frame: Frame,
    bp: Place,
    address: Place,
}

impl Default for Row {
    fn default() -> Row {
        Row { frame: Frame::Other, bp: Place::Same, address: Place::Same }
    }
}

const MOST_REMEMBERED: usize = 8;

impl Row {
    fn place(&mut self, register: u64) -> Option<&mut Place> {
        match register {
            BP => Some(&mut self.bp),
            RETURN => Some(&mut self.address),
            _ => None,
        }
    }

    fn set(&mut self, register: u64, place: Place) {
        if let Some(at) = self.place(register) {
            *at = place;
        }
    }

    /// Carries out instructions, up to those for what comes after `until` bytes of the function.
    fn run(&mut self, bytes: &mut Bytes, (cie, first): (&Cie, &Row), until: u64) -> Option<()> {
        let mut remembered = [Row::default(); MOST_REMEMBERED];
        let (mut depth, mut at) = (0usize, 0u64);
        while bytes.at < bytes.end && !bytes.failed {
            let op = bytes.u8();
            let low = (op & 0x3f) as u64;
            let by = |count: u64| count.wrapping_mul(cie.data as u64) as i64;
            match (op & 0xc0, op) {
                (0x40, _) => at = at.saturating_add(low.saturating_mul(cie.code)),
                (0x80, _) => {
                    let offset = by(bytes.uleb());
                    self.set(low, Place::At(offset));
                }
                (0xc0, _) => self.restore(low, first),
                // DW_CFA_nop, GNU_args_size
                (_, 0x00) => {}
                (_, 0x2e) => drop(bytes.uleb()),
                // DW_CFA_advance_loc1, 2, 4
                (_, 0x02..=0x04) => {
                    let step = bytes.number(1 << (op - 2));
                    at = at.saturating_add(step.saturating_mul(cie.code));
                }
                // offset_extended, restore_extended, undefined, same_value, register
                (_, 0x05) => {
                    let register = bytes.uleb();
                    let offset = by(bytes.uleb());
                    self.set(register, Place::At(offset));
                }
                (_, 0x06) => {
                    let register = bytes.uleb();
                    self.restore(register, first);
                }
                (_, 0x07) => {
                    let register = bytes.uleb();
                    self.set(register, Place::Nowhere);
                }
                (_, 0x08) => {
                    let register = bytes.uleb();
                    self.set(register, Place::Same);
                }
                (_, 0x09) => {
                    let register = bytes.uleb();
                    bytes.uleb();
                    self.set(register, Place::Other);
                }
                // remember_state, restore_state
                (_, 0x0a) => {
                    *remembered.get_mut(depth)? = *self;
                    depth += 1;
                }
                (_, 0x0b) => {
                    depth = depth.checked_sub(1)?;
                    *self = remembered[depth];
                }
                // def_cfa, def_cfa_register, def_cfa_offset, def_cfa_expression
                (_, 0x0c) => self.frame = Frame::Register(bytes.uleb(), bytes.uleb() as i64),
                (_, 0x0d) => {
                    let Frame::Register(_, offset) = self.frame else { return None };
                    self.frame = Frame::Register(bytes.uleb(), offset);
                }
                (_, 0x0e) => {
                    let Frame::Register(register, _) = self.frame else { return None };
                    self.frame = Frame::Register(register, bytes.uleb() as i64);
                }
                (_, 0x0f) => self.frame = Frame::expressed(bytes),
                // expression, val_expression
                (_, 0x10 | 0x16) => {
                    let register = bytes.uleb();
                    let len = bytes.uleb();
                    let place = Place::expressed(bytes, len);
                    self.set(register, if op == 0x10 { place } else { Place::Other });
                }
                // offset_extended_sf, def_cfa_sf, def_cfa_offset_sf
                (_, 0x11) => {
                    let register = bytes.uleb();
                    let offset = by(bytes.sleb() as u64);
                    self.set(register, Place::At(offset));
                }
                (_, 0x12) => self.frame = Frame::Register(bytes.uleb(), by(bytes.sleb() as u64)),
                (_, 0x13) => {
                    let Frame::Register(register, _) = self.frame else { return None };
                    self.frame = Frame::Register(register, by(bytes.sleb() as u64));
                }
                // val_offset, val_offset_sf
                (_, 0x14 | 0x15) => {
                    let register = bytes.uleb();
                    bytes.uleb();
                    self.set(register, Place::Other);
                }
                _ => return None,
            }
            if at > until {
                break;
            }
        }
        (!bytes.failed).then_some(())
    }

    fn restore(&mut self, register: u64, first: &Row) {
        let mut first = *first;
        if let Some(place) = first.place(register) {
            let place = *place;
            self.set(register, place);
        }
    }

    fn body(&self) -> Option<u64> {
        if self.address == Place::Nowhere {
            return Some(rule_body(ROOT, 0, 0));
        }
        let (kind, offset) = match self.frame {
            Frame::Register(SP, offset) => (BY_SP, offset),
            Frame::Register(BP, offset) => (BY_BP, offset),
            Frame::ThroughBp(offset) => (THROUGH_BP, offset),
            _ => return None,
        };
        let bp = match self.bp {
            Place::FromBp(offset) if kind == THROUGH_BP => words(offset)?,
            _ if kind == THROUGH_BP => return None,
            Place::Same | Place::Nowhere => 0,
            Place::At(offset) if offset != 0 => words(offset)?,
            _ => return None,
        };
        let offset = i32::try_from(offset).ok()?;
        (self.address == Place::At(-8)).then(|| rule_body(kind, offset, bp))
    }
}

fn words(offset: i64) -> Option<i16> {
    i16::try_from(offset / 8).ok().filter(|_| offset % 8 == 0)
}

const BREG6: u8 = 0x76;
const DEREF: u8 = 0x06;

impl Frame {
    /// Where a function aligns its stack, the compiler keeps where the frame begins in a word below rbp.
    fn expressed(bytes: &mut Bytes) -> Frame {
        let len = bytes.uleb();
        let end = bytes.at.saturating_add(len);
        let mut frame = Frame::Other;
        if bytes.u8() == BREG6 {
            let offset = bytes.sleb();
            if bytes.u8() == DEREF && bytes.at == end {
                frame = Frame::ThroughBp(offset);
            }
        }
        bytes.at = end;
        frame
    }
}

impl Place {
    fn expressed(bytes: &mut Bytes, len: u64) -> Place {
        let end = bytes.at.saturating_add(len);
        let mut place = Place::Other;
        if bytes.u8() == BREG6 {
            let offset = bytes.sleb();
            if bytes.at == end {
                place = Place::FromBp(offset);
            }
        }
        bytes.at = end;
        place
    }
}
