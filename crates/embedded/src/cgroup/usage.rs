//! Measures the resource usage of a container.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::Hierarchies;
use outrigger_runtime::Stats;
use outrigger_runtime::processes::Process;

impl Hierarchies {
    /// The resource usage of a cgroup. A container is not in every controller (see the module). If the
    /// controller is missing, the usage of its processes is added up instead.
    pub(crate) fn usage(&self, path: &str) -> Stats {
        let processes = || self.processes(path).iter().map(Process::pid).collect::<Vec<_>>();
        Stats {
            cpu: self.cpu(path).or_else(|| cpu_of(&processes())),
            memory_bytes: self.memory(path).or_else(|| memory_of(&processes())),
        }
    }

    fn cpu(&self, path: &str) -> Option<Duration> {
        let v1 = self.v1_dir("cpuacct", path).and_then(|dir| number(&dir.join("cpuacct.usage")));
        let unified = || {
            let text = fs::read_to_string(self.unified.as_ref()?.join(path).join("cpu.stat")).ok()?;
            field(&text, "usage_usec").map(Duration::from_micros)
        };
        v1.map(Duration::from_nanos).or_else(unified)
    }

    fn memory(&self, path: &str) -> Option<u64> {
        let of = |dir: &Path, used: &str, inactive: &str| {
            let used = number(&dir.join(used))?;
            let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
            Some(used.saturating_sub(field(&stat, inactive).unwrap_or(0)))
        };
        let v1 = self
            .v1_dir("memory", path)
            .and_then(|dir| of(&dir, "memory.usage_in_bytes", "total_inactive_file"));
        v1.or_else(|| of(&self.unified.as_ref()?.join(path), "memory.current", "inactive_file"))
    }
}

/// The kernel reports the CPU time of processes in hundredths of a second on every machine that we support.
const TICK_MS: u64 = 10;

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The CPU time of processes, and of the children that they have waited for.
fn cpu_of(pids: &[i32]) -> Option<Duration> {
    let ticks = |pid: &i32| -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the program's name in parentheses, which may contain anything.
        let rest = stat[stat.rfind(')')? + 1..].split_whitespace();
        Some(rest.skip(11).take(4).filter_map(|text| text.parse::<u64>().ok()).sum())
    };
    let sum: u64 = pids.iter().filter_map(ticks).sum();
    (!pids.is_empty()).then(|| Duration::from_millis(sum * TICK_MS))
}

/// The memory of processes without shared pages, which cannot be attributed cheaply.
fn memory_of(pids: &[i32]) -> Option<u64> {
    let bytes = |pid: &i32| -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
    };
    (!pids.is_empty()).then(|| pids.iter().filter_map(bytes).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_whole_names() {
        let text = "usage_usec_x 1\nusage_usec 42\ninactive_file 7\n";
        assert_eq!(field(text, "usage_usec"), Some(42));
        assert_eq!(field(text, "inactive_file"), Some(7));
        assert_eq!(field(text, "file"), None);
    }

    #[test]
    fn processes_tell_what_they_use() {
        let own = [std::process::id() as i32];
        assert!(memory_of(&own).is_some_and(|bytes| bytes > 10_000));
        assert!(cpu_of(&own).is_some() && cpu_of(&[]).is_none() && memory_of(&[]).is_none());
    }
}
