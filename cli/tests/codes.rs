//! Exit codes: the command's own, and ours (B110).

#![cfg(feature = "sqlite")]

mod common;

use common::{Bench, finish, finish_started};

#[test]
fn the_commands_own_end_is_the_programs() {
    let bench = Bench::new();
    for code in [0, 1, 2, 42, 76, 255] {
        let ran = bench.ran(&["run", "-n", "j", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((ran.code, ran.signal, ran.stderr.as_str()), (code, None, ""));
    }
    for signal in [1, 2, 6, 9, 11, 13, 15] {
        let ran = bench.ran(&["run", "-n", "j", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!((ran.code, ran.signal), (128 + signal, Some(signal)), "{ran:?}");
    }
    bench.assert_free("j");
}

/// A run inside a run of the same name waits for what cannot end before it does.
#[test]
fn a_run_that_waits_for_itself_is_told_so() {
    let bench = Bench::new();
    let program = env!("CARGO_BIN_EXE_leasehold");
    let ran = bench.ran(&["run", "j", "--", program, "run", "--wait", "300ms", "j", "--", "true"]);
    assert_eq!(ran.code, 75, "{ran:?}");
    assert!(ran.stderr.contains("held by the run that this command is part of"), "{ran:?}");
    let other = bench.ran(&["run", "j", "--", program, "run", "--wait", "300ms", "k", "--", "true"]);
    assert_eq!((other.code, other.stderr.as_str()), (0, ""));
}

#[test]
fn the_raised_signal_leaves_no_core_of_ours() {
    let cores = |bench: &Bench| {
        let files = std::fs::read_dir(bench.scratch.path()).expect("own").flatten();
        files.filter(|file| file.file_name().to_string_lossy().starts_with("core")).count()
    };
    let with_cores = |bench: &Bench, args: &[&str]| {
        let mut command = std::process::Command::new("prlimit");
        command.arg("--core=unlimited").args(args).current_dir(bench.scratch.path());
        finish(command.env("LEASEHOLD_STORE", bench.url()).stdin(std::process::Stdio::null()))
    };
    let control = Bench::new();
    with_cores(&control, &["sh", "-c", "kill -ABRT $$"]);
    if cores(&control) == 0 {
        // The machine hands cores to a program, or keeps none: nothing can be seen here.
        eprintln!("skipped: this machine writes no core files");
        return;
    }
    let bench = Bench::new();
    let program = env!("CARGO_BIN_EXE_leasehold");
    let ran = with_cores(&bench, &[program, "run", "j", "--", "sh", "-c", "ulimit -c 0; kill -ABRT $$"]);
    assert_eq!((ran.signal, cores(&bench)), (Some(6), 0), "{ran:?}");
}

#[test]
fn what_cannot_be_executed_has_the_codes_of_env() {
    let bench = Bench::new();
    let script = bench.path("not-executable");
    std::fs::write(&script, "#!/bin/sh\n").expect("written");
    for (command, code) in
        [("/no/such/file", 127), ("no-such-command", 127), ("", 127), (&script, 126), ("/", 126)]
    {
        let ran = bench.ran(&["run", "-n", "j", "--", command]);
        assert_eq!(ran.code, code, "{command}: {ran:?}");
        assert!(ran.stderr.contains("cannot execute"), "{}", ran.stderr);
        bench.assert_free("j");
    }
}

#[test]
fn a_taken_lease_is_busy_with_the_code_that_was_asked_for() {
    let bench = Bench::new();
    let holder = bench.start(&["--owner", "the holder", "j", "--", "sh", "-c", "echo up >up; exec sleep 60"]);
    bench.written("up");
    for (args, code) in [
        (&["-n"][..], 75),
        (&["--nonblock"], 75),
        (&["--nb"], 75),
        (&["-w", "0"], 75),
        (&["-w", "0.2"], 75),
        (&["--timeout", "200ms"], 75),
        (&["-n", "-E", "0"], 0),
        (&["-w", "0.1", "-E", "255"], 255),
    ] {
        let args = [&["run"], args, &["j", "--", "touch", "ran"]].concat();
        let ran = bench.ran(&args);
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains("held by the holder (#"), "{}", ran.stderr);
        assert!(ran.stderr.contains("since 20") && ran.stderr.contains("at most"), "{}", ran.stderr);
    }
    assert!(!bench.exists("ran"), "a refused run started its command");
    let quiet = bench.ran(&["run", "-q", "-n", "j", "--", "touch", "ran"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (75, ""));
    drop(holder);
}

#[test]
fn a_wrong_command_line_is_usage_and_asks_no_store() {
    let bench = Bench::new();
    for args in [
        &["run"][..],
        &["run", "j"],
        &["run", "j", "--"],
        &["run", "--no-such-flag", "j", "--", "true"],
        &["run", "-w", "nan", "j", "--", "true"],
        &["run", "-w", "inf", "j", "--", "true"],
        &["run", "-w", "-1", "j", "--", "true"],
        &["run", "-w", "", "j", "--", "true"],
        &["run", "-w", "1e30", "j", "--", "true"],
        &["run", "-w", "99999999999999999999999", "j", "--", "true"],
        &["run", "--ttl", "0", "j", "--", "true"],
        &["run", "--ttl", "10s", "-k", "6s", "j", "--", "true"],
        &["run", "--max-hold", "1s", "-k", "1s", "j", "--", "true"],
        &["run", "--min-hold", "2s", "--max-hold", "1s", "j", "--", "true"],
        &["run", "-E", "256", "j", "--", "true"],
        &["run", "-E", "-1", "j", "--", "true"],
        &["run", "-s", "STOP", "j", "--", "true"],
        &["run", "--on-lost", "shrug", "j", "--", "true"],
        &["run", "--meta", "=x", "j", "--", "true"],
        &["run", "--owner", "a\nb", "j", "--", "true"],
        &["run", "", "--", "true"],
        &["run", "a\nb", "--", "true"],
        &["run", "a\u{7f}b", "--", "true"],
        &["run", &"x".repeat(513), "--", "true"],
        &["no-such-command"],
        &["check"],
        &["check", "j", "--token", "0"],
        &["fence", "j", "--token", "-1"],
        &["force-release", "j", "--reason", "blind"],
        &["force-release", "j", "--token", "1"],
        &["force-release", "j", "--token", "1", "--reason", "a\nb"],
        &["force-release", "j", "--holder", "x", "--reason", "y"],
        &["explain", "nonsense"],
        &[],
    ] {
        let ran = bench.ran(args);
        assert_eq!(ran.code, 64, "{args:?}: {ran:?}");
        assert!(!ran.stderr.is_empty(), "{args:?} says nothing");
    }
    assert!(!bench.exists("leases.db"), "a wrong command line opened the store");
    // Wrong for this store: refused by its profile, before anything is acquired.
    let ran = bench.ran(&["run", "--ttl", "1ns", "-k", "0", "--on-lost", "warn", "j", "--", "true"]);
    assert_eq!(ran.code, 64, "{ran:?}");
    assert!(ran.stderr.contains("--ttl"), "{}", ran.stderr);
}

#[test]
fn names_and_arguments_go_through_as_they_are() {
    let bench = Bench::new();
    for name in ["a/b", "..", "🐂 ox", "é", "a%2Fb", "--", "--ttl", "-n", " "] {
        let ran = bench.ran(&["run", "--", name, "sh", "-c", "printf '%s' \"$LEASEHOLD_NAME\""]);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, name), "{ran:?}");
    }
    for dashes in [&[][..], &["--"]] {
        let args =
            [&["run", "j"], dashes, &["sh", "-c", "echo \"$@\"", "sh", "-v", "--json", "--", "-n", ""]];
        let ran = bench.ran(&args.concat());
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "-v --json -- -n \n", ""));
    }
    let shell = bench.ran(&["run", "j", "-c", "echo $0; exit 3"]);
    assert_eq!((shell.code, shell.stdout.as_str()), (3, "/bin/sh\n"));
    let other = finish(bench.program().env("SHELL", "/bin/echo").args(["run", "j", "-c", "text"]));
    assert_eq!(other.stdout, "-c text\n");
}

#[test]
fn stdin_and_a_large_environment_reach_the_command() {
    use std::io::Write;
    let bench = Bench::new();
    let mut command = bench.program();
    command.args(["run", "j", "--", "sh", "-c", "cat; printf %s \"$BIG\" | wc -c"]);
    // Below the kernel's limit for one string (128 KiB), above every buffer of ours.
    command.env("BIG", "x".repeat(120_000)).stdin(std::process::Stdio::piped());
    let mut proc = leasehold_testkit::Proc::spawn(&mut command).expect("it starts");
    let mut stdin = proc.child_mut().stdin.take().expect("piped");
    let text = "line\n".repeat(50_000);
    let copy = text.clone();
    let writer = std::thread::spawn(move || stdin.write_all(copy.as_bytes()));
    let ran = finish_started(proc);
    writer.join().expect("a thread").expect("all of stdin was read");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.starts_with(&text) && ran.stdout.trim_end().ends_with("120000"));
}

#[test]
fn the_command_gets_nothing_of_ours_but_its_environment() {
    let bench = Bench::new();
    // B111: three descriptors (and the directory that is being listed), default signals, own group.
    let script = "ls /proc/self/fd | wc -l; grep -E '^Sig(Blk|Ign|Cgt):' /proc/self/status; env | sort";
    let before = leasehold_testkit::boot_now();
    let ran = bench.ran(&["run", "--ttl", "20s", "j", "--", "sh", "-c", script]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let inherited = descriptors_that_tests_leak();
    assert_eq!(lines[0].trim().parse::<usize>().ok(), Some(4 + inherited), "{}", ran.stdout);
    assert!(ran.stdout.contains("SigBlk:\t0000000000000000"), "{}", ran.stdout);
    let ignored = lines.iter().find_map(|line| line.strip_prefix("SigIgn:\t")).expect("a mask");
    let ignored = u64::from_str_radix(ignored, 16).expect("hex");
    // The signals that this test process may itself have been started with as ignored stay so.
    assert_eq!(ignored & 0x7fff_ffff & !own_ignored(), 0, "{}", ran.stdout);
    let value = |name: &str| {
        let prefix = format!("{name}=");
        lines.iter().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!((value("LEASEHOLD_HELD"), value("LEASEHOLD_NAME")), ("1", "j"));
    assert_eq!((value("LEASEHOLD_BACKEND"), value("LEASEHOLD_TTL_MS")), ("sqlite", "20000"));
    assert!(value("LEASEHOLD_TOKEN").parse::<u64>().is_ok_and(|token| token > 0));
    assert_eq!(value("LEASEHOLD_OWNER").len(), 8);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("now").as_millis();
    let deadline: u128 = value("LEASEHOLD_DEADLINE_UNIX_MS").parse().expect("a number");
    let took = (leasehold_testkit::boot_now() - before).as_millis();
    assert!(deadline <= now + 20_000 && deadline + took + 500 >= now + 19_000, "{deadline} at {now}");
    assert_eq!(value("LEASEHOLD_STORE"), bench.url());
    let ours = lines.iter().filter(|line| line.starts_with("LEASEHOLD_")).count();
    assert_eq!(ours, 8 + 1, "an undocumented variable (one is the tests' own mark): {}", ran.stdout);
}

/// Descriptors that cargo or the shell above it left open in this process without close-on-exec.
fn descriptors_that_tests_leak() -> usize {
    let out =
        std::process::Command::new("ls").arg("/proc/self/fd").stdin(std::process::Stdio::null()).output();
    String::from_utf8_lossy(&out.expect("ls").stdout).lines().count() - 4
}

fn own_ignored() -> u64 {
    let out =
        std::process::Command::new("grep").args(["SigIgn", "/proc/self/status"]).output().expect("grep");
    let text = String::from_utf8_lossy(&out.stdout).replace("SigIgn:", "");
    u64::from_str_radix(text.trim(), 16).expect("hex")
}

#[test]
fn codes_are_explained_and_listed_in_the_help() {
    let bench = Bench::new();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/exit-codes.md"));
    let page = page.expect("docs/exit-codes.md");
    let (help, run_help) = (bench.ran(&["--help"]), bench.ran(&["run", "--help"]));
    assert_eq!((help.code, run_help.code), (0, 0));
    for code in ["0", "64", "69", "70", "75", "76", "77", "78", "126", "127"] {
        let explained = bench.ran(&["explain", code]);
        assert_eq!(explained.code, 0);
        let meaning =
            explained.stdout.lines().next().and_then(|line| line.split_once("): ")).expect("a line").1;
        assert!(page.contains(meaning), "the page lacks {meaning:?}");
        for help in [&help.stdout, &run_help.stdout] {
            assert!(help.contains(&format!("{code:>5}  ")), "{code} is not in the help");
        }
    }
    assert_eq!(bench.ran(&["--version"]).code, 0);
}

#[test]
fn nobody_listening_is_no_reason_to_panic() {
    let bench = Bench::new();
    for redirect in [">&- 2>&-", ">/dev/full 2>/dev/full", "2>&-"] {
        for (args, code) in
            [("run -v j -- true", 0), ("run -n j -- sh -c 'exit 9'", 9), ("explain 76", 0), ("--help", 0)]
        {
            let line = format!("{} {args} {redirect}", env!("CARGO_BIN_EXE_leasehold"));
            let ran = finish(
                std::process::Command::new("sh").args(["-c", &line]).env("LEASEHOLD_STORE", bench.url()),
            );
            // A disk that is full is a failure to answer, and not a crash.
            let full = redirect.contains("full") && ran.code == 70;
            assert!(ran.code == code || full, "{line}: {ran:?}");
            assert!(!ran.stderr.contains("panicked"), "{line}: {ran:?}");
        }
    }
    let line = format!("{} list -o json | true; {0} --help | true", env!("CARGO_BIN_EXE_leasehold"));
    let ran =
        finish(std::process::Command::new("sh").args(["-c", &line]).env("LEASEHOLD_STORE", bench.url()));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}
