//! Outrigger: simulate.
