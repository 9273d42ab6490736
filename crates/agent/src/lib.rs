//! Outrigger: agent.
