//! Signals to the wrapper: caught before the first word with the store, handed on to the command.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH, SIGXFSZ,
};

/// Signals that are handed on to the command.
const FORWARDED: [i32; 9] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT, SIGTSTP];
/// Signals that end a wait.
const ENDING: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// Caught signals.
#[derive(Debug)]
pub(crate) struct Signals {
    caught: Vec<(i32, Arc<AtomicBool>)>,
    bell: UnixStream,
}

/// Rings when a signal is caught.
#[derive(Debug)]
pub(crate) struct Bell(tokio::net::UnixStream);

impl Bell {
    /// Completes when it has rung since the last time. Cancel-safe.
    pub(crate) async fn rung(&self) {
        let mut bytes = [0u8; 256];
        loop {
            if self.0.readable().await.is_err() {
                // The runtime ends; nobody waits for a signal any more.
                return std::future::pending().await;
            }
            // The flags were set before the bell was rung: whoever hears it finds them.
            match self.0.try_read(&mut bytes) {
                Ok(n) if n > 0 => return,
                Ok(_) => return std::future::pending().await,
                Err(_) => {}
            }
        }
    }
}

/// Whether a signal ends a wait.
pub(crate) fn ends_a_wait(signal: i32) -> bool {
    ENDING.contains(&signal)
}

/// Whether a second one of this signal means SIGKILL.
pub(crate) fn insists(signal: i32) -> bool {
    matches!(signal, SIGINT | SIGTERM)
}

impl Signals {
    /// Catches signals from now on.
    ///
    /// A hang-up that was ignored when the program began stays ignored: nohup(1) meant it so.
    pub(crate) fn catch() -> std::io::Result<Self> {
        let (bell, writer) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        let mut caught = Vec::with_capacity(FORWARDED.len());
        for signal in FORWARDED {
            if signal == SIGHUP && is_ignored(SIGHUP) {
                continue;
            }
            let flag = Arc::new(AtomicBool::new(false));
            // In this order: whoever hears the bell finds the flag.
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
            caught.push((signal, flag));
        }
        // Ignored by some parents, which would make the kernel reap our children unseen.
        signal_hook::flag::register(SIGCHLD, Arc::default())?;
        // A store's file that meets `ulimit -f` is an error of that write, not the end of the program.
        // Caught, not ignored: the command starts with the default.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        Ok(Signals { caught, bell })
    }

    /// What rings when a signal is caught. Made inside the runtime that waits on it.
    pub(crate) fn bell(&self) -> std::io::Result<Bell> {
        Ok(Bell(tokio::net::UnixStream::from_std(self.bell.try_clone()?)?))
    }

    /// The signals caught since the last call.
    pub(crate) fn take(&self) -> Vec<i32> {
        let caught = self.caught.iter().filter(|(_, flag)| flag.swap(false, Ordering::AcqRel));
        caught.map(|(signal, _)| *signal).collect()
    }
}

/// Whether a signal is ignored, as `/proc` tells. Without `/proc` the guardian refuses to start anyway.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1
}

/// Ends this process by `signal`, as the command ended, without a core of its own.
pub(crate) fn die_of(signal: i32) {
    // The first process of a container is spared its own default signals: its code must do.
    if std::process::id() == 1 {
        return;
    }
    let no_core = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, no_core);
    // A core pattern that pipes to a program ignores that limit, and minds this.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    // An error: the signal has no default that ends a process. The caller's exit code tells it.
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_seen() {
        // The standard library ignores SIGPIPE in every program.
        assert!(is_ignored(signal_hook::consts::SIGPIPE));
        assert!(!is_ignored(SIGTERM));
        assert!(!is_ignored(0) && !is_ignored(99));
    }
}
