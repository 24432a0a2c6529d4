//! Looking at this process from the outside.

use std::path::PathBuf;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds this thread, and every thread that it starts afterwards, to the last processor it may use.
///
/// # Errors
/// The operating system's.
pub fn pin_to_one_processor() -> std::io::Result<usize> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| allowed.is_set(cpu)).unwrap_or(0);
    let mut one = CpuSet::new();
    one.set(last);
    sched_setaffinity(None, &one)?;
    Ok(last)
}

/// How many threads this process has.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Time on a processor of this process's threads of these names, as the scheduler counts it.
pub fn thread_cpu(names: &[&str]) -> Duration {
    tasks_named(names)
        .into_iter()
        .filter_map(|task| {
            let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
        })
        .sum()
}

/// How many threads of this process have one of these names.
pub fn threads_named(names: &[&str]) -> usize {
    tasks_named(names).len()
}

fn tasks_named(names: &[&str]) -> Vec<PathBuf> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let named = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| names.contains(&name.trim_end()))
    };
    tasks.flatten().map(|task| task.path()).filter(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_is_seen_by_its_name() {
        let busy = || {
            let mut n = 0u64;
            while thread_cpu(&["busy-bee"]) < Duration::from_millis(5) {
                n = std::hint::black_box(n.wrapping_add(1));
            }
        };
        let before = threads();
        std::thread::Builder::new()
            .name("busy-bee".into())
            .spawn(move || {
                busy();
                assert!(threads() > before.min(1));
            })
            .expect("a thread")
            .join()
            .expect("it ends");
    }
}
