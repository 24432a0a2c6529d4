//! When threads or processes are not to be had: an error, the lease freed, no command (B27).

#![cfg(feature = "sqlite")]

mod common;

use std::process::Stdio;

use common::{Bench, finish};
use leasehold_testkit::{Scratch, Unprivileged};

#[test]
fn without_watchdog_or_guardian_no_command_is_started() {
    let nobody = Unprivileged::new();
    let shared = Scratch::readable_by_all();
    let program =
        nobody.bring(std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")), &shared).expect("copied");
    let open = shared.join("open");
    std::fs::create_dir(&open).expect("made");
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("own");
    let url = format!("sqlite://{}/leases.db", open.display());
    let mark = open.join("ran");
    let run = |limit: u32| {
        let mut command = nobody.command("prlimit");
        command.arg(format!("--nproc={limit}:{limit}")).arg(&program);
        command.args(["run", "-n", "j", "--", "touch"]).arg(&mark);
        command.env("LEASEHOLD_STORE", &url).env("HOME", "/nonexistent");
        finish(command.current_dir("/").stdin(Stdio::null()))
    };
    let (mut refused, mut by_guardian, mut succeeded) = (0, 0, 0);
    // Each thread and process that the program needs fails once; others of this user may run too.
    for limit in 1..400 {
        let ran = run(limit);
        assert!(!ran.stderr.contains("panicked"), "limit {limit}: {ran:?}");
        if ran.code == 0 {
            assert!(mark.exists());
            succeeded = limit;
            break;
        }
        assert!(!mark.exists(), "limit {limit}: the command ran: {ran:?}");
        refused += 1;
        by_guardian += u32::from(ran.stderr.contains("guardian"));
        eprintln!("limit {limit}: {} {}", ran.code, ran.stderr.trim());
        // The lease is free again, whatever failed.
        let bench = Bench::new();
        let free =
            finish(bench.program().env("LEASEHOLD_STORE", &url).args(["run", "-n", "j", "--", "true"]));
        assert_eq!(free.code, 0, "limit {limit}: {ran:?}, then {free:?}");
        for file in ["leases.db", "leases.db-wal", "leases.db-shm"] {
            let file = open.join(file);
            if file.exists() {
                let all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
                std::fs::set_permissions(&file, all).expect("own");
            }
        }
    }
    eprintln!("{refused} refusals, {by_guardian} by the guardian, success at a limit of {succeeded}");
    assert!(refused >= 3 && by_guardian >= 1 && succeeded > 0, "the limits were never felt");
}
