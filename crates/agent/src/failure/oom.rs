//! The container's memory usage and the number of its OOM kills, from its memory cgroup.

use protocol::report::Memory;
use std::path::{Path, PathBuf};

/// Counts OOM kills since it was created.
pub struct OomKills {
    file: PathBuf,
    before: u64,
}

impl OomKills {
    /// Starts counting. `None` if the cgroup can't be found or read, because not every runtime mounts it.
    pub fn start() -> Option<Self> {
        let read = |path| std::fs::read_to_string(path).ok();
        let file = counter_file(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?)?;
        let before = count(&file)?;
        Some(Self { file, before })
    }

    pub fn since_start(&self) -> u64 {
        count(&self.file).unwrap_or(self.before).saturating_sub(self.before)
    }

    /// The memory limit of the cgroup, and its highest usage.
    pub fn memory(&self) -> Memory {
        // The file of v2, then that of v1.
        let number = |files: [&str; 2]| {
            let read = |file| std::fs::read_to_string(self.file.with_file_name(file)).ok();
            files.into_iter().find_map(read)?.trim().parse::<u64>().ok()
        };
        let limit = number(["memory.max", "memory.limit_in_bytes"]).filter(|limit| *limit < UNLIMITED);
        let peak = number(["memory.peak", "memory.max_usage_in_bytes"]);
        let stat = std::fs::read_to_string(self.file.with_file_name("memory.stat")).ok();
        Memory { limit, peak, shared: stat.and_then(|stat| shared(&stat)) }
    }
}

/// Reads `shmem` of `memory.stat`: shared memory, and files in memory that this container has written.
fn shared(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("shmem "))?.trim().parse().ok()
}

/// Values from here on mean no limit. v1 reports the highest number of whole pages then, and no machine has half as
/// much.
const UNLIMITED: u64 = 1 << 62;

fn count(file: &Path) -> Option<u64> {
    parse_count(&std::fs::read_to_string(file).ok()?)
}

/// `oom_kill` of cgroup v2's `memory.events` and, since Linux 4.13, of v1's `memory.oom_control`.
fn parse_count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// The file with the counter, from this process's mounts and cgroups. It is v1's if v1's memory controller is in use.
fn counter_file(mountinfo: &str, cgroup: &str) -> Option<PathBuf> {
    let cgroup_of = |wanted: fn(&str) -> bool| {
        cgroup.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            wanted(controllers).then_some(path)
        })
    };
    if let Some(path) = cgroup_of(|controllers| controllers.split(',').any(|name| name == "memory")) {
        let is_memory = |options: &str| options.split(',').any(|option| option == "memory");
        return Some(directory(mountinfo, "cgroup", is_memory, path)?.join("memory.oom_control"));
    }
    let path = cgroup_of(str::is_empty)?;
    Some(directory(mountinfo, "cgroup2", |_| true, path)?.join("memory.events"))
}

/// Where the cgroup `path` lies in the first mount of that file system.
///
/// In a container the mount usually is the cgroup itself, while `path` may be relative to the host's root. Then the
/// mount's root is removed from the beginning of `path`. If that fails, the result is the mount itself.
fn directory(mountinfo: &str, filesystem: &str, options: impl Fn(&str) -> bool, path: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut source = source.split(' ');
        if source.next()? != filesystem || !options(source.nth(1)?) {
            return None;
        }
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, Path::new(mount.next()?));
        Some(match Path::new(path).strip_prefix(root) {
            Ok(below) => point.join(below),
            Err(_) => point.to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "30 29 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n";

    fn file(mountinfo: &str, cgroup: &str) -> String {
        counter_file(mountinfo, cgroup).unwrap().display().to_string()
    }

    #[test]
    fn cgroup_v2_counter_file_is_found() {
        assert_eq!(file(V2, "0::/\n"), "/sys/fs/cgroup/memory.events");
        assert_eq!(file(V2, "0::/kubepods/pod1/c\n"), "/sys/fs/cgroup/kubepods/pod1/c/memory.events");
    }

    #[test]
    fn cgroup_v1_counter_file_is_found_with_or_without_host_paths() {
        let mounts = "40 39 0:30 /kubepods/pod1/c /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n\
                      41 39 0:31 /kubepods/pod1/c /sys/fs/cgroup/memory ro master:5 - cgroup cgroup rw,memory\n";
        let cgroup = "4:memory:/kubepods/pod1/c\n3:cpu,cpuacct:/kubepods/pod1/c\n0::/\n";
        assert_eq!(file(mounts, cgroup), "/sys/fs/cgroup/memory/memory.oom_control");
        assert_eq!(file(mounts, "4:memory:/elsewhere\n"), "/sys/fs/cgroup/memory/memory.oom_control");
        let host = "41 39 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(file(host, "4:memory:/a/b\n"), "/sys/fs/cgroup/memory/a/b/memory.oom_control");
    }

    #[test]
    fn missing_cgroup_mount_has_no_counter_file() {
        assert_eq!(counter_file("", "0::/\n"), None);
        assert_eq!(counter_file(V2, "4:memory:/a\n"), None);
        assert_eq!(counter_file("garbage\n", "garbage\n"), None);
    }

    #[test]
    fn shmem_matches_only_the_exact_key() {
        assert_eq!(shared("anon 10\nshmem_thp 4\nshmem 4096\nfile 9\n"), Some(4096));
        assert_eq!(shared("total_shmem 3\n"), None);
    }

    #[test]
    fn oom_kill_count_is_parsed() {
        assert_eq!(parse_count("low 0\noom 3\noom_kill 2\noom_group_kill 1\n"), Some(2));
        assert_eq!(parse_count("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), Some(5));
        assert_eq!(parse_count("oom_kill_disable 0\n"), None);
    }
}
