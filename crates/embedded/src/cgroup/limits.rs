//! Writes the limits of cgroups, for the controllers of both cgroup versions.

use std::fs;
use std::io;
use std::path::Path;

use outrigger_runtime::Resources;

/// v1 controllers with limits.
pub(super) const CONTROLLERS_V1: [&str; 3] = ["memory", "cpu", "pids"];
/// Their names in the unified hierarchy.
pub(super) const CONTROLLERS_V2: [&str; 3] = ["memory", "cpu", "pids"];

/// The quota period, the same as the kubelet's.
pub(super) const PERIOD_US: u64 = 100_000;

/// Whether these resources need a v1 controller.
pub(super) fn needs_v1(controller: &str, resources: &Resources) -> bool {
    match controller {
        "memory" => resources.memory_limit_bytes.is_some(),
        "cpu" => resources.cpu_limit_milli.is_some() || resources.cpu_request_milli.is_some(),
        "pids" => resources.pids_limit.is_some(),
        _ => false,
    }
}

/// Whether these resources need the unified hierarchy.
pub(super) fn needs_v2(resources: &Resources) -> bool {
    CONTROLLERS_V1.iter().any(|controller| needs_v1(controller, resources))
}

/// Writes one v1 controller's limits.
pub(super) fn apply_v1(controller: &str, dir: &Path, resources: &Resources) -> io::Result<()> {
    match controller {
        "memory" => {
            if let Some(bytes) = resources.memory_limit_bytes {
                fs::write(dir.join("memory.limit_in_bytes"), bytes.to_string())?;
                // This limits memory and swap together, so that swapping does not get around the limit. Not
                // every kernel counts swap.
                let _ = fs::write(dir.join("memory.memsw.limit_in_bytes"), bytes.to_string());
            }
        }
        "cpu" => {
            if let Some(milli) = resources.cpu_request_milli {
                fs::write(dir.join("cpu.shares"), shares(milli).to_string())?;
            }
            if let Some(milli) = resources.cpu_limit_milli {
                fs::write(dir.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
                fs::write(dir.join("cpu.cfs_quota_us"), quota_us(milli).to_string())?;
            }
        }
        "pids" => {
            if let Some(limit) = resources.pids_limit {
                fs::write(dir.join("pids.max"), limit.to_string())?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Enables controllers from the root down to the children of `path`.
pub(super) fn enable_v2(root: &Path, path: &str, controllers: &[&str]) -> io::Result<()> {
    if controllers.is_empty() {
        return Ok(());
    }
    let wanted: Vec<String> = controllers.iter().map(|name| format!("+{name}")).collect();
    let wanted = wanted.join(" ");
    let mut dir = root.to_path_buf();
    fs::write(dir.join("cgroup.subtree_control"), &wanted)?;
    for part in path.split('/') {
        dir.push(part);
        fs::write(dir.join("cgroup.subtree_control"), &wanted)?;
    }
    Ok(())
}

/// Writes the limits of a cgroup in the unified hierarchy, as far as it has the controllers.
pub(super) fn apply_v2(dir: &Path, resources: &Resources, controllers: &[&str]) -> io::Result<()> {
    let has = |controller| controllers.contains(&controller);
    if let (true, Some(bytes)) = (has("memory"), resources.memory_limit_bytes) {
        fs::write(dir.join("memory.max"), bytes.to_string())?;
        let _ = fs::write(dir.join("memory.swap.max"), "0");
        // A container that is out of memory is killed as a whole, as on the kubelet.
        let _ = fs::write(dir.join("memory.oom.group"), "1");
    }
    if let (true, Some(milli)) = (has("cpu"), resources.cpu_request_milli) {
        fs::write(dir.join("cpu.weight"), weight(shares(milli)).to_string())?;
    }
    if let (true, Some(milli)) = (has("cpu"), resources.cpu_limit_milli) {
        fs::write(dir.join("cpu.max"), format!("{} {PERIOD_US}", quota_us(milli)))?;
    }
    if let (true, Some(limit)) = (has("pids"), resources.pids_limit) {
        fs::write(dir.join("pids.max"), limit.to_string())?;
    }
    Ok(())
}

pub(super) fn shares(milli: u64) -> u64 {
    (milli.saturating_mul(1024) / 1000).clamp(2, 262_144)
}

fn weight(shares: u64) -> u64 {
    1 + (shares - 2) * 9999 / 262_142
}

pub(super) fn quota_us(milli: u64) -> u64 {
    (milli.saturating_mul(PERIOD_US) / 1000).max(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_amounts_become_what_the_kubelet_writes() {
        for (milli, expected_shares, expected_weight, expected_quota) in [
            (0, 2, 1, 1000),
            (1, 2, 1, 1000),
            (100, 102, 4, 10_000),
            (1000, 1024, 39, 100_000),
            (2500, 2560, 98, 250_000),
        ] {
            assert_eq!(shares(milli), expected_shares, "{milli}m");
            assert_eq!(weight(shares(milli)), expected_weight, "{milli}m");
            assert_eq!(quota_us(milli), expected_quota, "{milli}m");
        }
    }

    #[test]
    fn the_largest_amount_stays_in_range() {
        assert_eq!(weight(shares(u64::MAX)), 10_000);
    }
}
