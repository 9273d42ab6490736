//! Outrigger: lifecycle.
