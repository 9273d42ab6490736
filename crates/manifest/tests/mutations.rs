//! Mutated manifests: reading and editing any bytes does not panic and does not take long.
//!
//! `OUTRIGGER_MUTATIONS` sets the number of mutations, `OUTRIGGER_SEED` the first seed. A failure prints its
//! seed.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test itself reads its seeds and the clock; the crate does not"
)]

mod exercise;

use std::time::{Duration, Instant};

/// Pieces of YAML that are special to a parser.
const WORDS: [&str; 32] = [
    "- ", ": ", "\n", "  ", "\t", "{", "}", "[", "]", ",", "&a ", "*a", "<<: ", "|", ">-", "#", "\"", "'",
    "---\n", "...\n", "? ", "!!str ", "\0", "é", "\u{feff}", "\r", "yes", "0644", "~", "kind: ", "items:\n",
    "\\ud83d",
];

/// The SplitMix64 generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn seeds() -> Vec<Vec<u8>> {
    files("seeds")
}

fn files(directory: &str) -> Vec<Vec<u8>> {
    let directory = format!("{}/../../fuzz/{directory}", env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn mutate(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..1 + random.below(6) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(40)).min(bytes.len());
        match random.below(6) {
            0 => {
                bytes.drain(at..end);
            }
            1 => {
                let copy = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            2 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                let to = (from + random.below(200)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            3 if at < bytes.len() => bytes[at] = random.next() as u8,
            _ => {
                let word = WORDS[random.below(WORDS.len())];
                bytes.splice(at..at, word.bytes());
            }
        }
    }
    bytes
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn no_bytes_can_make_the_reader_or_the_editor_fail() {
    let seeds = seeds();
    let (first, count) = (number("OUTRIGGER_SEED", 1), number("OUTRIGGER_MUTATIONS", 3_000));
    for seed in first..first + count {
        let mut random = Random(seed);
        let bytes = mutate(&mut random, &seeds);
        let started = Instant::now();
        let result = std::panic::catch_unwind(|| {
            exercise::manifest(&bytes);
            exercise::convert(&bytes);
            if let Ok(text) = std::str::from_utf8(&bytes) {
                exercise::edit(text, seed);
            }
        });
        let text = String::from_utf8_lossy(&bytes);
        assert!(result.is_ok(), "OUTRIGGER_SEED={seed} OUTRIGGER_MUTATIONS=1 panics on:\n{text}");
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "OUTRIGGER_SEED={seed} takes too long on:\n{text}"
        );
    }
    println!("seeds {first} to {}", first + count - 1);
}

#[test]
fn what_fuzzing_found_stays_fixed() {
    for bytes in files("regressions") {
        exercise::manifest(&bytes);
        exercise::convert(&bytes);
        exercise::edit_anywhere(&bytes);
    }
}

#[test]
fn every_seed_is_a_good_manifest() {
    use outrigger_manifest::{ReadOptions, SourceFile, read, render};
    for bytes in seeds() {
        let source = SourceFile::from_bytes("seed", bytes).unwrap();
        if let Err(found) = read(std::slice::from_ref(&source), &ReadOptions::default()) {
            panic!("{}", render(&found.0, &[source], false));
        }
    }
}

#[test]
fn large_inputs_are_refused_in_time() {
    let n = 1 << 20;
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n";
    let many = |line: &dyn Fn(usize) -> String, count: usize| (0..count).map(line).collect::<String>();
    let inputs = [
        "[".repeat(n),
        "{a: ".repeat(n / 4),
        "- ".repeat(n / 2),
        "? ".repeat(n / 2),
        format!("\"{}", "a".repeat(n)),
        format!("{}: b", "a".repeat(n)),
        "- a\n".repeat(n / 4),
        format!("[{}]", "a,".repeat(n / 2)),
        format!("a: |\n{}", "\n".repeat(n)),
        format!("{}{}", pod, "#é\n".repeat(n / 4)),
        "---\n".repeat(n / 4),
        "a b\n".repeat(n / 4),
        format!("{pod}{}", many(&|i| format!("  field{i}: 1\n"), 40_000)),
        format!("{pod}  containers:\n{}", "  - {name: a, image: 1, args: 2}\n".repeat(20_000)),
        format!("{{{}\"z\": 1}}", many(&|i| format!("\"field{i}\": 1, "), 150_000)),
        format!("a: &a [{}]\n{}", "x, ".repeat(1_000), many(&|i| format!("b{i}: *a\n"), 100_000)),
        format!("a: &a {{{}}}\nb:\n{}", many(&|i| format!("k{i}: 1, "), 1_000), "- {<<: *a}\n".repeat(1_000)),
        format!("{pod}  containers: [{{name: \"{}\"}}]\n", "é".repeat(n / 2)),
    ];
    for input in inputs {
        let started = Instant::now();
        exercise::manifest(input.as_bytes());
        let head: String = input.chars().take(80).collect();
        println!("{:?} {head:?}", started.elapsed());
        assert!(started.elapsed() < Duration::from_secs(30), "takes {:?}: {head}", started.elapsed());
    }
}
