//! Replays the fuzzing corpus and earlier findings, and mutations of them, through the fuzzing entry points.
//!
//! `OUTRIGGER_MUTATIONS=100000` tries more mutations. A failure prints the `OUTRIGGER_SEED` that repeats it.

use std::fs;
use std::path::PathBuf;

/// Fuzz targets, with the number of mutations.
const TARGETS: [(&str, fn(&[u8]), u64); 5] = [
    ("layer", outrigger_images::fuzz::layer, 300),
    ("documents", outrigger_images::fuzz::documents, 5_000),
    ("shim", outrigger_embedded::fuzz::shim, 5_000),
    ("netlink", outrigger_embedded::fuzz::netlink, 20_000),
    ("control", outrigger_node::fuzz::control, 2_000),
];

/// The inputs of a target: its corpus and earlier findings.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let base = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let mut found = Vec::new();
    for dir in [base.join("edges").join(target), base.join("edges-found").join(target)] {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        found.extend(entries.map(|entry| fs::read(entry.path()).expect("an input")));
    }
    assert!(!found.is_empty(), "{target} has nothing to start from");
    found
}

/// The SplitMix64 generator, so that a seed repeats the mutations.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn mutate(random: &mut Random, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1).min(bytes.len());
        match random.below(5) {
            0 if at < bytes.len() => bytes[at] = random.next() as u8,
            1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => bytes.truncate(at),
            3 => {
                let other = &inputs[random.below(inputs.len())];
                let from = random.below(other.len());
                bytes.splice(at..at, other[from..].iter().copied().take(600));
            }
            _ => bytes.insert(at, [0, 1, 0x7f, 0x80, 0xff][random.below(5)]),
        }
    }
    bytes
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn inputs_and_their_mutations_are_taken_or_refused_as_root() {
    for (target, run, count) in TARGETS {
        let inputs = inputs(target);
        for bytes in &inputs {
            run(bytes);
        }
        let first = variable("OUTRIGGER_SEED").unwrap_or(1);
        let count = match variable("OUTRIGGER_SEED") {
            Some(_) => 1,
            None => variable("OUTRIGGER_MUTATIONS").unwrap_or(count),
        };
        for seed in first..first + count {
            let bytes = mutate(&mut Random(seed), &inputs);
            let result = std::panic::catch_unwind(|| run(&bytes));
            assert!(result.is_ok(), "target {target}, OUTRIGGER_SEED={seed}");
        }
    }
}
