//! Which store, what is wrong with it, and that no secret of it is shown.

#![cfg(feature = "sqlite")]

mod common;

use std::process::Stdio;
use std::time::Duration;

use common::{Bench, SOON, finish, finish_started};
use leasehold_testkit::{Proc, Unprivileged, boot_now, eventually};

#[test]
fn a_wrong_store_is_a_matter_of_configuration_wherever_it_came_from() {
    let bench = Bench::new();
    for (url, says) in [
        ("sqliet:x.db", "did you mean \"sqlite\"?"),
        ("nosuch://host/1", "no store is known for the scheme \"nosuch\""),
        ("sqlite:x.db?bsuy_timeout=1s", "did you mean \"busy_timeout\"?"),
        ("sqlite:x.db?mode=ro", "has no parameter \"mode\""),
        ("sqlite:x.db?busy_timeout=soon", "busy_timeout"),
        ("sqlite:", "names no file"),
        ("sqlite::memory:", "memory://"),
        ("sqlite:x.db#y", "%23"),
        ("memory://a/b", "memory://name"),
        ("prod", "no store is named \"prod\""),
    ] {
        let flag = bench.ran(&["--store", url, "run", "j", "--", "touch", "ran"]);
        let variable = finish(bench.program().env("LEASEHOLD_STORE", url).args(["list"]));
        let file = format!("default = \"it\"\n[stores.it]\nurl = \"{url}\"");
        std::fs::write(bench.scratch.join("leasehold.toml"), file).expect("written");
        let config = finish(bench.program_without_store().args(["run", "j", "--", "touch", "ran"]));
        std::fs::remove_file(bench.scratch.join("leasehold.toml")).expect("removed");
        for (from, ran) in [("flag", flag), ("variable", variable), ("config", config)] {
            if url == "prod" && from == "config" {
                continue;
            }
            assert_eq!(ran.code, 78, "{url} from {from}: {ran:?}");
            assert!(ran.stderr.contains(says), "{url} from {from}: {}", ran.stderr);
        }
    }
    assert!(!bench.exists("ran"));
    assert!(!bench.exists("x.db"), "a wrong URL opened a file");
}

#[test]
fn configuration_files_are_layered_and_checked() {
    let bench = Bench::new();
    let user = bench.scratch.join("home/.config/leasehold");
    std::fs::create_dir_all(&user).expect("made");
    let write = |path: &std::path::Path, text: &str| std::fs::write(path, text).expect("written");
    let project = bench.scratch.join("leasehold.toml");
    write(
        &user.join("config.toml"),
        "default = \"a\"\n[stores.a]\nurl = \"sqlite:user.db\"\n[stores.b]\nurl = \"sqlite:b.db\"",
    );
    write(&project, "[stores.a]\nurl = \"sqlite:${env:WHICH}.db\"");
    let run = |extra: &[&str]| {
        let mut command = bench.program_without_store();
        finish(command.env("WHICH", "project").args(extra).args([
            "run",
            "-n",
            "j",
            "--",
            "sh",
            "-c",
            "echo $LEASEHOLD_STORE",
        ]))
    };
    let ran = run(&[]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(
        ran.stdout.trim(),
        format!("sqlite://{}", bench.path("project.db")),
        "absolute, for any directory"
    );
    assert!(bench.exists("project.db") && !bench.exists("user.db"));
    assert_eq!(run(&["--store", "b"]).code, 0);
    assert!(bench.exists("b.db"));
    let ran = run(&["--store", "bb"]);
    assert!(ran.code == 78 && ran.stderr.contains("did you mean \"b\"?"), "{ran:?}");
    for (text, says) in [
        ("defautl = \"a\"", "did you mean \"default\"?"),
        ("[stores.a]\nulr = \"x\"", "did you mean \"url\"?"),
        ("[stores.a]\nurl = \"sqlite:${env:UNSET_VARIABLE}\"", "UNSET_VARIABLE is not set"),
        ("[stores", "no TOML"),
        ("default = \"zz\"", "no store is named \"zz\""),
    ] {
        write(&project, text);
        let ran = run(&[]);
        assert_eq!(ran.code, 78, "{text}: {ran:?}");
        assert!(ran.stderr.contains(says) && ran.stderr.contains("leasehold.toml"), "{text}: {}", ran.stderr);
    }
}

#[test]
fn who_chooses_no_store_gets_a_file_of_their_own() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let ran = finish(bench.program_without_store().args([
        "run",
        "j",
        "--",
        "sh",
        "-c",
        "leasehold=1; echo $LEASEHOLD_STORE",
    ]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let file = bench.scratch.join("home/.local/state/leasehold/leases.db");
    assert!(file.exists());
    assert_eq!(ran.stdout.trim(), format!("sqlite://{}", file.display()));
    let mode = std::fs::metadata(file.parent().expect("a directory")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let state = bench.path("state dir");
    let ran =
        finish(bench.program_without_store().env("XDG_STATE_HOME", &state).args(["run", "j", "--", "true"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(bench.exists("state dir/leasehold/leases.db"));
    let ran = finish(bench.program_without_store().env_remove("HOME").args(["list"]));
    assert_eq!(ran.code, 78, "{ran:?}");
}

#[test]
fn a_store_in_memory_serves_one_program() {
    let bench = Bench::new();
    let ran = bench.ran(&[
        "--store",
        "memory://x",
        "run",
        "j",
        "--",
        "sh",
        "-c",
        "echo $LEASEHOLD_BACKEND $LEASEHOLD_STORE",
    ]);
    assert_eq!((ran.code, ran.stdout.trim()), (0, "memory memory://x"), "{ran:?}");
}

#[test]
fn a_store_that_does_not_answer_is_unavailable_within_the_operation_timeout() {
    let bench = Bench::new();
    bench.assert_free("j");
    let _lock = bench.lock_store();
    // An unlimited wait, a try, and a question that writes.
    for args in [
        &["--op-timeout", "1s", "run", "j", "--", "touch", "ran"][..],
        &["--op-timeout", "1s", "run", "-n", "j", "--", "touch", "ran"],
        &["--op-timeout", "1s", "fence", "j", "--token", "5"],
    ] {
        let asked = boot_now();
        let ran = bench.ran(args);
        let took = boot_now() - asked;
        assert_eq!(ran.code, 69, "{args:?}: {ran:?}");
        // One second to connect, one to ask, one to close, and one for a busy machine.
        assert!(took < Duration::from_secs(4), "{args:?} took {took:?}");
        for raw in ["malformed", "disk I/O", "SQLITE_"] {
            assert!(!ran.stderr.contains(raw), "{}", ran.stderr);
        }
    }
    assert!(!bench.exists("ran"));
}

#[test]
fn a_held_lease_in_a_locked_store_is_never_called_corrupt() {
    // B83: held, and locked by somebody else at the same time.
    let bench = Bench::new();
    let mut holder = bench.start(&["--ttl", "20s", "j", "--", "sh", "-c", "echo up >up; sleep 60"]);
    bench.written("up");
    let lock = bench.lock_store();
    let ran = bench.ran(&["--op-timeout", "1s", "run", "-n", "j", "--", "true"]);
    assert!(matches!(ran.code, 69 | 75), "{ran:?}");
    assert!(!ran.stderr.contains("malformed") && !ran.stderr.contains("I/O error"), "{}", ran.stderr);
    drop(lock);
    let ran = bench.ran(&["run", "-n", "j", "--", "true"]);
    assert_eq!(ran.code, 75, "{ran:?}");
    holder.kill_all();
}

#[test]
fn a_file_that_is_no_store_and_one_that_may_not_be_written_have_codes_of_their_own() {
    let bench = Bench::new();
    std::fs::write(
        bench.scratch.join("text.db"),
        "this is no database, and longer than a header of one\n".repeat(40),
    )
    .expect("written");
    let ran = bench.ran(&["--store", "sqlite:text.db", "run", "j", "--", "touch", "ran"]);
    assert!(matches!(ran.code, 70 | 78), "{ran:?}");
    let ran = bench.ran(&["--store", "sqlite:/proc/nope/x.db", "run", "j", "--", "touch", "ran"]);
    assert!(matches!(ran.code, 69 | 77 | 78), "{ran:?}");
    assert!(!bench.exists("ran"));

    // Readable by all, writable by its owner alone: nobody is refused, and told what it is about.
    let scratch = leasehold_testkit::Scratch::readable_by_all();
    let nobody = Unprivileged::new();
    let program =
        nobody.bring(std::path::Path::new(env!("CARGO_BIN_EXE_leasehold")), &scratch).expect("copied");
    let url = format!("sqlite://{}", scratch.join("leases.db").display());
    assert_eq!(finish(bench.program().args(["--store", &url, "init"])).code, 0);
    let ran = finish(
        nobody
            .command(&program)
            .env("LEASEHOLD_STORE", &url)
            .env("HOME", "/nonexistent")
            .args(["run", "j", "--", "true"])
            .stdin(Stdio::null()),
    );
    assert_eq!(ran.code, 77, "{ran:?}");
}

#[test]
fn no_secret_of_a_url_is_shown_anywhere() {
    const SECRET: &str = "hunter2";
    let bench = Bench::new();
    let mut shown = String::new();
    for url in [
        "nosuch://user:hunter2@host/0",
        "nosuch://host?password=hunter2",
        "sqlite:x.db?key=hunter2",
        "sqlite:x.db?busy_timeout=hunter2&x",
        "memory://hunter2@x",
        "sqlite://u:hunter2@h/x.db",
        "nosuch://u:#hunter2@h",
        "nosuch://u:hun ter2hunter2@h",
    ] {
        for command in [
            &["run", "-v", "j", "--", "true"][..],
            &["run", "--json", "j", "--", "true"],
            &["list"],
            &["init"],
        ] {
            let ran = finish(bench.program().env("LEASEHOLD_STORE", url).args(command));
            assert_eq!(ran.code, 78, "{url}: {ran:?}");
            shown += &format!("{}{}", ran.stdout, ran.stderr);
        }
        let file = format!("default = \"it\"\n[stores.it]\nurl = \"{url}\"\nextra = 1");
        std::fs::write(bench.scratch.join("leasehold.toml"), file).expect("written");
        let ran = finish(bench.program_without_store().args(["list"]));
        std::fs::remove_file(bench.scratch.join("leasehold.toml")).expect("removed");
        assert_eq!(ran.code, 78, "{ran:?}");
        shown += &ran.stderr;
    }
    assert!(!shown.contains(SECRET), "{shown}");
    assert!(shown.contains("***"), "what was shown was never a URL: {shown}");

    // A secret in the store's variable reaches the job's environment (it was there before), and no
    // process list.
    let mut command = bench.program();
    command.env("LEASEHOLD_STORE", "it").env("SECRET_PATH", format!("{SECRET}.db"));
    std::fs::write(bench.scratch.join("leasehold.toml"), "[stores.it]\nurl = \"sqlite:${env:SECRET_PATH}\"")
        .expect("written");
    command.args(["run", "-v", "j", "--", "sh", "-c", "echo up >up; exec sleep 60"]);
    let mut proc = Proc::spawn(&mut command).expect("it starts");
    bench.written("up");
    let living = proc.living();
    assert!(living.len() >= 3, "wrapper, guardian, command: {living:?}");
    for stat in living {
        let line = std::fs::read(format!("/proc/{}/cmdline", stat.pid)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(SECRET), "in the process list");
    }
    proc.kill_all();
}

#[test]
fn who_waits_at_a_terminal_is_told_for_whom() {
    let bench = Bench::new();
    let holder = bench.start(&[
        "--owner",
        "night shift",
        "j",
        "--",
        "sh",
        "-c",
        "echo up >up; until [ -e go ]; do sleep 0.02; done",
    ]);
    bench.written("up");
    let line = format!("{} run j -- true", env!("CARGO_BIN_EXE_leasehold"));
    // script(1) gives the program a terminal.
    let command = bench.program();
    let mut script = std::process::Command::new("script");
    for (name, value) in command.get_envs() {
        script.env(name, value.expect("set"));
    }
    script.args(["-qec", &line, "/dev/null"]).current_dir(bench.scratch.path());
    script
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(bench.scratch.join("terminal")).expect("a file"))
        .stderr(Stdio::null());
    let on_terminal = Proc::spawn(&mut script).expect("script(1) starts");
    // Into files, so that each is seen to wait before the name is freed.
    let waiter = |flag: &str| {
        let file = std::fs::File::create(bench.scratch.join(flag)).expect("a file");
        let mut command = bench.program();
        command.args(["run", flag, "j", "--", "true"]).stderr(file);
        Proc::spawn(&mut command).expect("it starts")
    };
    let silent = bench.start(&["j", "--", "true"]);
    let (verbose, json) = (waiter("-v"), waiter("--json"));
    for (file, word) in [("terminal", "unless renewed"), ("-v", "unless renewed"), ("--json", "waiting")] {
        eventually(SOON, "the line is written at the first refusal", || {
            bench.scratch.read(file).contains(word).then_some(())
        });
    }
    let told = bench.scratch.read("terminal");
    assert!(told.contains("waiting for \"j\", held by night shift (#"), "{told}");
    assert!(told.contains("since 20") && told.contains("at most unless renewed"), "{told}");
    assert_eq!(told.lines().count(), 1, "one line: {told}");
    assert!(!told.contains('\u{1b}'), "no colours: {told}");
    std::fs::write(bench.scratch.join("go"), "").expect("written");
    assert_eq!(finish_started(silent).stderr, "");
    for waiter in [verbose, json] {
        let ran = finish_started(waiter);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
    }
    let json = bench.scratch.read("--json");
    for event in ["waiting", "granted", "started", "released", "exit"] {
        assert!(json.contains(&format!("\"event\":\"{event}\"")), "{event}: {json}");
    }
    assert!(json.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{json}");
    assert!(json.contains("\"label\":\"night shift\""), "{json}");
    assert_eq!((finish_started(holder).code, finish_started(on_terminal).code), (0, 0));
}

#[test]
fn a_configuration_that_is_no_file_is_refused_at_once() {
    let bench = Bench::new();
    let made = std::process::Command::new("mkfifo").arg(bench.scratch.join("leasehold.toml")).status();
    assert!(made.expect("mkfifo").success());
    let ran = finish(bench.program_without_store().args(["run", "j", "--", "true"]));
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.stderr.contains("no regular file"), "{ran:?}");
}

#[test]
fn init_makes_what_other_commands_may_not() {
    let bench = Bench::new();
    let url = format!("{}?schema=refuse", bench.url());
    let refused = bench.ran(&["--store", &url, "run", "j", "--", "true"]);
    assert_eq!(refused.code, 78, "{refused:?}");
    assert!(refused.stderr.contains("leasehold init"), "{refused:?}");
    assert_eq!(bench.ran(&["--store", &url, "init"]).code, 0);
    assert_eq!(bench.ran(&["--store", &url, "run", "j", "--", "true"]).code, 0);
}

#[test]
fn a_store_in_memory_says_that_it_excludes_no_other_program() {
    let bench = Bench::new();
    let ran = bench.ran(&["--store", "memory://m", "run", "j", "--", "true"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("seen by this program alone"), "{ran:?}");
}
