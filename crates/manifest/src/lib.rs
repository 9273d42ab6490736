//! Outrigger: manifest.
