//! The device allow list as an eBPF program. cgroup v2 has no devices controller and calls such a program
//! instead.
//!
//! The program gets `{ access_type: u32, major: u32, minor: u32 }` and returns 1 to allow. The upper half of
//! `access_type` is the access (1 mknod, 2 read, 4 write), the lower half the kind (1 block, 2 character).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::devices::Rule;

/// One instruction in the kernel's format.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Insn {
    code: u8,
    /// The destination register in the lower half, the source register in the upper half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const BLOCK: i32 = 1;
const CHARACTER: i32 = 2;
const MKNOD: i32 = 1;

// Registers: r1 context, r2 kind, r3 access, r4 major, r5 minor.
const fn load(register: u8, offset: i16) -> Insn {
    // r = *(u32 *)(r1 + offset)
    Insn { code: 0x61, registers: register | 1 << 4, offset, immediate: 0 }
}

const fn jump_unless_equal(register: u8, immediate: i32, offset: i16) -> Insn {
    Insn { code: 0x55, registers: register, offset, immediate }
}

const fn alu(code: u8, register: u8, immediate: i32) -> Insn {
    Insn { code, registers: register, offset: 0, immediate }
}

const fn answer(allow: bool) -> [Insn; 2] {
    [alu(0xb7, 0, allow as i32), Insn { code: 0x95, registers: 0, offset: 0, immediate: 0 }]
}

/// The program for an allow list.
pub(super) fn device_program(rules: &[Rule]) -> Vec<Insn> {
    let mut program = vec![
        load(2, 0),
        alu(0x54, 2, 0xffff), // w2 &= 0xffff: the kind
        load(3, 0),
        alu(0x74, 3, 16), // w3 >>= 16: the access
        load(4, 4),
        load(5, 8),
    ];
    for rule in rules {
        let mut tests = vec![(2, if rule.block { BLOCK } else { CHARACTER })];
        if !rule.open {
            tests.push((3, MKNOD));
        }
        tests.extend(rule.major.map(|major| (4, major as i32)));
        tests.extend(rule.minor.map(|minor| (5, minor as i32)));
        let count = tests.len();
        for (index, (register, value)) in tests.into_iter().enumerate() {
            // Jumps over the remaining tests and the two instructions that return the answer.
            program.push(jump_unless_equal(register, value, (count - index - 1 + 2) as i16));
        }
        program.extend(answer(true));
    }
    program.extend(answer(false));
    program
}

/// Loads the program and attaches it to the cgroup for as long as the cgroup exists.
pub(super) fn attach_device_filter(cgroup: BorrowedFd<'_>, program: &[Insn]) -> io::Result<()> {
    const PROG_LOAD: i32 = 5;
    const PROG_ATTACH: i32 = 8;
    const TYPE_CGROUP_DEVICE: u32 = 15;
    const ATTACH_CGROUP_DEVICE: u32 = 6;

    #[repr(C)]
    #[derive(Default)]
    struct Load {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Attach {
        target_fd: u32,
        attach_bpf_fd: u32,
        attach_type: u32,
        attach_flags: u32,
    }

    let load = Load {
        prog_type: TYPE_CGROUP_DEVICE,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        ..Load::default()
    };
    // SAFETY: program and license outlive the call, which copies them; the result is a fresh descriptor or -1.
    let fd = unsafe {
        let fd = libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>());
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd as i32)
    };
    let attach = Attach {
        target_fd: cgroup.as_raw_fd() as u32,
        attach_bpf_fd: fd.as_raw_fd() as u32,
        attach_type: ATTACH_CGROUP_DEVICE,
        attach_flags: 0,
    };
    // SAFETY: both descriptors are open and the structure outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, PROG_ATTACH, &raw const attach, size_of::<Attach>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::devices::ALLOWED;
    use super::*;

    /// Interprets a program like the kernel, for the few instructions that it uses.
    fn run(program: &[Insn], access: u32, block: bool, major: u32, minor: u32) -> bool {
        let context = [access << 16 | if block { 1 } else { 2 }, major, minor];
        let mut registers = [0_u32; 6];
        let mut at = 0_usize;
        loop {
            let insn = program[at];
            let register = (insn.registers & 15) as usize;
            at += 1;
            match insn.code {
                0x61 => registers[register] = context[insn.offset as usize / 4],
                0x54 => registers[register] &= insn.immediate as u32,
                0x74 => registers[register] >>= insn.immediate,
                0x55 if registers[register] != insn.immediate as u32 => at += insn.offset as usize,
                0x55 => {}
                0xb7 => registers[register] = insn.immediate as u32,
                0x95 => return registers[0] == 1,
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn the_allow_list_allows_exactly_what_it_lists() {
        let program = device_program(&ALLOWED);
        let (mknod, read, read_write) = (1, 2, 6);
        for (access, block, major, minor, allowed) in [
            (read_write, false, 1, 3, true),
            (read, false, 1, 9, true),
            (read_write, false, 1, 1, false), // mem
            (read, false, 10, 229, false),    // fuse
            (mknod, false, 10, 229, true),
            (mknod, true, 254, 0, true),
            (read, true, 254, 0, false),
            (read_write, false, 136, 17, true),
            (read_write, true, 136, 17, false),
        ] {
            assert_eq!(
                run(&program, access, block, major, minor),
                allowed,
                "{access} {block} {major}:{minor}"
            );
        }
    }
}
