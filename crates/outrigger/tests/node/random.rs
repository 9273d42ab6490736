//! Pseudo-random numbers, and test settings from the environment.

/// Pseudo-random numbers that are the same for the same seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// A number in an environment variable.
pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// The first seed: `OUTRIGGER_SEED`, otherwise a different one each time.
pub(crate) fn first_seed() -> u64 {
    number("OUTRIGGER_SEED").unwrap_or_else(|| u64::from(std::process::id()))
}
