//! A filter policy, and its compilation to the kernel's program.

use std::collections::BTreeMap;

use super::names::{ARM_PRIVATE, Arch, Numbers};
use crate::fault::Fault;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Allow,
    /// Fails with this error number.
    Errno(u16),
    KillThread,
    KillProcess,
    Trap,
    Trace(u16),
    Log,
}

impl Action {
    fn code(self) -> u32 {
        match self {
            Action::Allow => 0x7fff_0000,
            Action::Errno(errno) => 0x0005_0000 | u32::from(errno),
            Action::KillThread => 0x0000_0000,
            Action::KillProcess => 0x8000_0000,
            Action::Trap => 0x0003_0000,
            Action::Trace(data) => 0x7ff0_0000 | u32::from(data),
            Action::Log => 0x7ffc_0000,
        }
    }
}

/// How an argument is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// Equal after applying this mask.
    Masked(u64),
}

/// A test of one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Condition {
    /// The number of the argument, from 0 to 5.
    pub(super) argument: u8,
    pub(super) compare: Compare,
    pub(super) value: u64,
}

/// What happens to a call if all these conditions hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) conditions: Vec<Condition>,
    pub(super) action: Action,
}

/// A whole filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Policy {
    /// The action for calls without a rule.
    pub(super) default: Action,
    /// The rules of one call with conditions come first, in their order. The first rule that matches applies.
    pub(super) rules: Vec<Rule>,
    /// The architectures of the filter. Calls for any other architecture fail with ENOSYS, including the x32
    /// variant of x86_64.
    pub(super) arches: Vec<Arch>,
}

/// The kernel's limit on the length of a program.
const PROGRAM_MAX: usize = 4096;

// Offsets into `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;

/// The bit that marks calls of the x32 variant, which is not used and would bypass every rule.
const X32: u32 = 0x4000_0000;

impl Policy {
    /// Compiles the policy to a program.
    pub(super) fn compile(&self) -> Result<Vec<libc::sock_filter>, Fault> {
        let numbers = Numbers::load();
        let mut blocks: BTreeMap<&str, Vec<&Rule>> = BTreeMap::new();
        for rule in &self.rules {
            blocks.entry(&rule.name).or_default().push(rule);
        }
        let blocks: Vec<(&str, Vec<libc::sock_filter>)> =
            blocks.into_iter().map(|(name, rules)| (name, self.block(&rules))).collect();
        let mut program = vec![statement(LOAD, ARCH)];
        for arch in &self.arches {
            let section = self.section(*arch, &numbers, &blocks);
            // A section is longer than the reach of a conditional jump.
            program.push(jump(JUMP_EQUAL, arch.audit(), 1, 0));
            program.push(statement(JUMP, section.len() as u32));
            program.extend(section);
        }
        program.push(statement(RETURN, Action::Errno(libc::ENOSYS as u16).code()));
        if program.len() > PROGRAM_MAX {
            return Err(Fault::config(format!(
                "the seccomp profile makes a program of {} instructions, the kernel takes {PROGRAM_MAX}",
                program.len()
            )));
        }
        Ok(program)
    }

    /// The part for one architecture: a binary search over ranges of numbers that have the same outcome.
    fn section(
        &self,
        arch: Arch,
        numbers: &Numbers,
        blocks: &[(&str, Vec<libc::sock_filter>)],
    ) -> Vec<libc::sock_filter> {
        let missing = Action::Errno(libc::ENOSYS as u16);
        // A call that this architecture does not have cannot be made.
        let named = blocks.iter().filter_map(|(name, block)| Some((numbers.number(arch, name)?, block)));
        let names: BTreeMap<u32, &Vec<libc::sock_filter>> = named.collect();
        let mut outcomes = Vec::new();
        let mut next = 0;
        for (number, block) in &names {
            if *number > next {
                outcomes.push((next, vec![self.unnamed(next, &names)]));
            }
            outcomes.push((*number, (*block).clone()));
            next = number + 1;
        }
        outcomes.push((next, vec![self.unnamed(next, &names)]));
        if arch == Arch::X86_64 {
            outcomes.push((X32, vec![statement(RETURN, missing.code())]));
        }
        outcomes.dedup_by(|later, earlier| same(&later.1, &earlier.1));
        let mut program = vec![statement(LOAD, NUMBER)];
        search(&outcomes, &mut program);
        program
    }

    /// The action for calls without a rule, from this number on. If such calls are refused, calls that are
    /// newer than all listed ones fail as on a kernel that does not have them. Programs then fall back to
    /// older calls.
    fn unnamed<B>(&self, number: u32, names: &BTreeMap<u32, B>) -> libc::sock_filter {
        let is_newest =
            !names.is_empty() && names.range(number..).next().is_none_or(|(next, _)| *next >= ARM_PRIVATE);
        let action = match self.default {
            Action::Errno(_) if is_newest => Action::Errno(libc::ENOSYS as u16),
            action => action,
        };
        statement(RETURN, action.code())
    }

    /// The instructions for one call. They always end in a return.
    fn block(&self, rules: &[&Rule]) -> Vec<libc::sock_filter> {
        let mut block = Vec::new();
        for rule in rules.iter().filter(|rule| !rule.conditions.is_empty()) {
            let length: usize = rule.conditions.iter().map(|condition| condition.length()).sum();
            let mut rest = length;
            for condition in &rule.conditions {
                rest -= condition.length();
                // Jumps over the remaining conditions and the return.
                condition.emit(&mut block, (rest + 1) as u8);
            }
            block.push(statement(RETURN, rule.action.code()));
        }
        let otherwise =
            rules.iter().find(|rule| rule.conditions.is_empty()).map_or(self.default, |rule| rule.action);
        block.push(statement(RETURN, otherwise.code()));
        block
    }
}

impl Condition {
    fn length(&self) -> usize {
        match self.compare {
            Compare::Equal | Compare::NotEqual => 4,
            Compare::Masked(_) => 6,
            _ => 5,
        }
    }

    /// Continues after the condition if it holds. Otherwise jumps `fail` instructions past its end.
    fn emit(&self, program: &mut Vec<libc::sock_filter>, fail: u8) {
        let low = ARGUMENTS + 8 * u32::from(self.argument);
        let (low, high) = if cfg!(target_endian = "little") { (low, low + 4) } else { (low + 4, low) };
        let (value_low, value_high) = (self.value as u32, (self.value >> 32) as u32);
        match self.compare {
            Compare::Equal => program.extend([
                statement(LOAD, high),
                jump(JUMP_EQUAL, value_high, 0, 2 + fail),
                statement(LOAD, low),
                jump(JUMP_EQUAL, value_low, 0, fail),
            ]),
            Compare::NotEqual => program.extend([
                statement(LOAD, high),
                jump(JUMP_EQUAL, value_high, 0, 2),
                statement(LOAD, low),
                jump(JUMP_EQUAL, value_low, fail, 0),
            ]),
            Compare::Masked(mask) => program.extend([
                statement(LOAD, high),
                statement(AND, (mask >> 32) as u32),
                jump(JUMP_EQUAL, value_high & (mask >> 32) as u32, 0, 3 + fail),
                statement(LOAD, low),
                statement(AND, mask as u32),
                jump(JUMP_EQUAL, value_low & mask as u32, 0, fail),
            ]),
            Compare::Greater | Compare::GreaterOrEqual | Compare::Less | Compare::LessOrEqual => {
                // "Less" is "not greater or equal", and so on, so the jump targets are swapped.
                let (test, holds, fails) = match self.compare {
                    Compare::Greater => (JUMP_GREATER, 0, fail),
                    Compare::GreaterOrEqual => (JUMP_GREATER_EQUAL, 0, fail),
                    Compare::Less => (JUMP_GREATER_EQUAL, fail, 0),
                    _ => (JUMP_GREATER, fail, 0),
                };
                program.extend([
                    statement(LOAD, high),
                    jump(JUMP_GREATER, value_high, 3 + holds, 0),
                    jump(JUMP_EQUAL, value_high, 0, 2 + fails),
                    statement(LOAD, low),
                    jump(test, value_low, holds, fails),
                ]);
            }
        }
    }
}

/// Emits the search among outcomes. Each applies to the numbers from its own to the next outcome's.
fn search(outcomes: &[(u32, Vec<libc::sock_filter>)], program: &mut Vec<libc::sock_filter>) {
    if let [(_, block)] = outcomes {
        program.extend(block);
        return;
    }
    let (lower, upper) = outcomes.split_at(outcomes.len() / 2);
    let mut left = Vec::new();
    search(lower, &mut left);
    match u8::try_from(left.len()) {
        Ok(length) => program.push(jump(JUMP_GREATER_EQUAL, upper[0].0, length, 0)),
        Err(_) => {
            program.push(jump(JUMP_GREATER_EQUAL, upper[0].0, 0, 1));
            program.push(statement(JUMP, left.len() as u32));
        }
    }
    program.extend(left);
    search(upper, program);
}

fn same(a: &[libc::sock_filter], b: &[libc::sock_filter]) -> bool {
    let key = |insn: &libc::sock_filter| (insn.code, insn.jt, insn.jf, insn.k);
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| key(a) == key(b))
}

fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Interprets a program like the kernel.
    pub(crate) fn run(program: &[libc::sock_filter], arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
        execute(program, arch, number, arguments).0
    }

    /// The number of instructions it takes to decide.
    pub(crate) fn steps(program: &[libc::sock_filter], arch: u32, number: u32) -> u32 {
        execute(program, arch, number, [0; 6]).1
    }

    fn execute(program: &[libc::sock_filter], arch: u32, number: u32, arguments: [u64; 6]) -> (u32, u32) {
        let mut data = vec![number, arch, 0, 0];
        for argument in arguments {
            data.extend([argument as u32, (argument >> 32) as u32]);
        }
        let (mut a, mut at, mut count) = (0_u32, 0_usize, 0);
        loop {
            let insn = program[at];
            at += 1;
            count += 1;
            let mut branch = |holds: bool| at += usize::from(if holds { insn.jt } else { insn.jf });
            match insn.code {
                LOAD => a = data[insn.k as usize / 4],
                AND => a &= insn.k,
                JUMP => at += insn.k as usize,
                JUMP_EQUAL => branch(a == insn.k),
                JUMP_GREATER => branch(a > insn.k),
                JUMP_GREATER_EQUAL => branch(a >= insn.k),
                RETURN => return (insn.k, count),
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    fn policy(rules: Vec<Rule>) -> Vec<libc::sock_filter> {
        let arches = vec![Arch::X86_64, Arch::I386];
        Policy { default: Action::Errno(1), rules, arches }.compile().unwrap()
    }

    fn rule(name: &str, conditions: &[Condition], action: Action) -> Rule {
        Rule { name: name.to_owned(), conditions: conditions.to_vec(), action }
    }

    const X86_64: u32 = 0xc000_003e;
    const I386: u32 = 0x4000_0003;

    #[test]
    fn calls_are_found_per_architecture() {
        let program = policy(vec![rule("read", &[], Action::Allow), rule("clone3", &[], Action::Errno(38))]);
        for (arch, number, expected) in [
            (X86_64, 0, Action::Allow),
            (X86_64, 1, Action::Errno(1)),
            (X86_64, 435, Action::Errno(38)),
            (I386, 3, Action::Allow),
            (I386, 0, Action::Errno(1)),
            (X86_64, 0x4000_0000, Action::Errno(38)),
            (0xc000_00b7, 63, Action::Errno(38)),
        ] {
            assert_eq!(run(&program, arch, number, [0; 6]), expected.code(), "{arch:#x} {number}");
        }
    }

    #[test]
    fn comparisons_see_all_64_bits() {
        let big = 0x1_0000_0005_u64;
        for (compare, value, argument, holds) in [
            (Compare::Equal, big, big, true),
            (Compare::Equal, big, 5, false),
            (Compare::NotEqual, big, 5, true),
            (Compare::NotEqual, big, big, false),
            (Compare::NotEqual, 5, 6, true),
            (Compare::Greater, big, big, false),
            (Compare::Greater, big, big + 1, true),
            (Compare::Greater, big, 0x2_0000_0000, true),
            (Compare::Greater, big, 6, false),
            (Compare::GreaterOrEqual, big, big, true),
            (Compare::GreaterOrEqual, big, big - 1, false),
            (Compare::Less, big, 6, true),
            (Compare::Less, big, big, false),
            (Compare::Less, big, 0x2_0000_0000, false),
            (Compare::LessOrEqual, big, big, true),
            (Compare::LessOrEqual, big, big + 1, false),
            (Compare::Masked(0x7e02_0000), 0, 0x0100_0011, true),
            (Compare::Masked(0x7e02_0000), 0, 0x1000_0000, false),
            (Compare::Masked(0xff_0000_0000), 0x1_0000_0000, big, true),
        ] {
            // A second condition after it checks that both jumps reach the right place.
            let conditions = [
                Condition { argument: 2, compare, value },
                Condition { argument: 0, compare: Compare::Equal, value: 9 },
            ];
            let program =
                policy(vec![rule("read", &conditions, Action::Allow), rule("read", &[], Action::Errno(7))]);
            let expected = if holds { Action::Allow } else { Action::Errno(7) };
            let got = run(&program, X86_64, 0, [9, 0, argument, 0, 0, 0]);
            assert_eq!(got, expected.code(), "{argument:#x} {compare:?} {value:#x}");
            assert_eq!(run(&program, X86_64, 0, [8, 0, argument, 0, 0, 0]), Action::Errno(7).code());
        }
    }
}
