//! System packages that the tests need.

use std::process::{Command, Stdio};

/// A program, and the Debian package that has it.
const NEEDS: &[(&str, &str)] = &[
    ("cc", "gcc"),
    ("setpriv", "util-linux"),
    ("taskset", "util-linux"),
    ("ps", "procps"),
    ("bash", "bash"),
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("openssl", "openssl"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("protoc", "protobuf-compiler"),
];

/// Installs what is missing, where that is possible; what is not is named, and the tests that need it
/// will fail and say so.
///
/// # Errors
/// When an installation was tried and failed.
pub(crate) fn install() -> Result<(), String> {
    let mut packages: Vec<&str> =
        NEEDS.iter().filter(|(program, _)| !exists(program)).map(|(_, package)| *package).collect();
    if !exists("cc") || !std::path::Path::new("/usr/include/stdlib.h").exists() {
        packages.push("libc6-dev");
    }
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        println!("nothing is missing");
        return Ok(());
    }
    let line = format!("apt-get install -y --no-install-recommends {}", packages.join(" "));
    if !exists("apt-get") || !is_root() {
        println!("missing: {} (as root: {line})", packages.join(", "));
        return Ok(());
    }
    println!("$ apt-get update && {line}");
    apt(&["update"])?;
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(&packages);
    apt(&install)
}

fn apt(args: &[&str]) -> Result<(), String> {
    let status = Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|e| format!("apt-get: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("apt-get {} failed ({status})", args.join(" "))) }
}

fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    // The owner of one's own process folder is the effective user.
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_exists_and_nonsense_does_not() {
        assert!(exists("sh") && !exists("no-such-program-here"));
    }
}
