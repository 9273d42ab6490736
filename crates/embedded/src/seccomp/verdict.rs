//! Evaluates a compiled filter for a system call, without making the call.

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;

/// Whether the filter permits this process a call with these first arguments. The others are zero.
pub(crate) fn allows(program: &[libc::sock_filter], number: i64, arguments: &[u64]) -> bool {
    let mut data = vec![number as u32, NATIVE, 0, 0];
    for index in 0..6 {
        let argument = arguments.get(index).copied().unwrap_or(0);
        data.extend([argument as u32, (argument >> 32) as u32]);
    }
    // Jumps only go forward, so the loop ends with the program.
    let (mut a, mut at) = (0_u32, 0_usize);
    while let Some(insn) = program.get(at) {
        at += 1;
        let branch = |holds: bool| usize::from(if holds { insn.jt } else { insn.jf });
        match insn.code {
            0x20 => match data.get(insn.k as usize / 4) {
                Some(word) => a = *word,
                None => return false,
            },
            0x54 => a &= insn.k,
            0x05 => at += insn.k as usize,
            0x15 => at += branch(a == insn.k),
            0x25 => at += branch(a > insn.k),
            0x35 => at += branch(a >= insn.k),
            0x06 => return matches!(insn.k, ALLOW | LOG),
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::filter;
    use super::*;
    use crate::caps::CapSet;
    use outrigger_runtime::Identity;

    #[test]
    fn the_default_filter_allows_processes_but_no_namespaces() {
        let program = filter(&Identity::default(), CapSet(0)).unwrap().unwrap();
        assert!(allows(&program, libc::SYS_clone, &[libc::SIGCHLD as u64]));
        assert!(!allows(&program, libc::SYS_clone, &[libc::CLONE_NEWUSER as u64]));
        assert!(allows(&program, libc::SYS_execve, &[]));
        assert!(!allows(&program, libc::SYS_mount, &[]));
        assert!(!allows(&[], libc::SYS_execve, &[]));
    }
}
