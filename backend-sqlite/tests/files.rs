//! The file itself: rights, kinds, removal, damage, schema.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::{
    Attempt, BackendError, Effect, ErrorKind, LeaseAdmin, LeaseBackend, LostCause, Released, RenewAnswer,
};
use leasehold_sqlite::{SchemaMode, SqliteBackend, SqliteConfig};
use sqlx::{Executor, SqliteConnection};
use support::*;

/// Texts of SQLite that must never stand for what they are not.
fn assert_own_words(error: &BackendError) {
    for raw in ["malformed", "database is locked", "unable to open", "not a database (", "disk I/O"] {
        assert!(!error.to_string().contains(raw), "{error}");
    }
}

async fn refused(config: SqliteConfig) -> BackendError {
    let watchdog = leasehold_core::Watchdog::start().expect("watchdog");
    let error = SqliteBackend::connect(config, watchdog.context()).await.expect_err("refused");
    assert_eq!(error.effect(), Effect::None, "{error}");
    assert_own_words(&error);
    error
}

fn mode(path: impl AsRef<Path>) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

#[tokio::test]
async fn what_is_made_is_for_its_owner_only() {
    let fixture = Fixture::new().await;
    let above = fixture.dir.path().join("given");
    fs::create_dir(&above).expect("made");
    fs::set_permissions(&above, fs::Permissions::from_mode(0o755)).expect("set");
    let path = above.join("a/b/leases.db");
    let backend = connect(path.clone(), &fixture.watchdog).await;
    grant(&backend, "n", TTL).await;
    assert_eq!(mode(&above), 0o755, "what was there is left alone");
    assert_eq!(mode(above.join("a")), 0o700);
    assert_eq!(mode(above.join("a/b")), 0o700);
    for suffix in ["", "-wal", "-shm"] {
        let mut name = path.clone().into_os_string();
        name.push(suffix);
        assert_eq!(mode(PathBuf::from(name)), 0o600, "leases.db{suffix}");
    }
}

#[tokio::test]
async fn a_removed_file_is_noticed_and_its_successor_used() {
    let fixture = Fixture::new().await;
    let (held, other) = (grant(&fixture.backend, "n", TTL).await, grant(&fixture.backend, "o", TTL).await);
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(fixture.dir.path().join(format!("leases.db{suffix}"))).expect("removed");
    }
    let RenewAnswer::Lost(LostCause::StoreForgot { detail }) = renew(&fixture.backend, &held).await else {
        panic!("not told")
    };
    assert!(detail.contains("removed"), "{detail}");
    assert!(matches!(release(&fixture.backend, &other).await, Released::AlreadyReleased));
    let next = grant(&fixture.backend, "n", TTL).await;
    assert!(next.token > held.token, "the wall clock is the floor of a new file");
    assert!(matches!(renew(&fixture.backend, &next).await, RenewAnswer::Renewed { .. }));
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Lost(LostCause::Taken { .. })));
    assert!(matches!(
        renew(&fixture.backend, &other).await,
        RenewAnswer::Lost(LostCause::StoreForgot { .. })
    ));
    refusal(&fixture.rival().await, "n", TTL).await;
}

/// Only the database is removed; its log stays behind.
#[tokio::test]
async fn a_removed_file_with_its_log_left_behind_is_a_new_file() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    fs::remove_file(fixture.path()).expect("removed");
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Lost(LostCause::StoreForgot { .. })));
    let next = grant(&fixture.backend, "n", TTL).await;
    assert!(next.token > held.token);
    let rival = fixture.rival().await;
    assert_eq!(refusal(&rival, "n", TTL).await.holder.expect("held").token, next.token);
    assert!(matches!(release(&fixture.backend, &next).await, Released::Released));
    grant(&rival, "n", TTL).await;
}

#[tokio::test]
async fn a_replaced_file_is_noticed() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    let elsewhere = fixture.dir.path().join("new.db");
    let other = connect(elsewhere.clone(), &fixture.watchdog).await;
    let theirs = grant(&other, "n", TTL).await;
    other.close().await;
    fs::rename(&elsewhere, fixture.path()).expect("replaced");
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Lost(LostCause::StoreForgot { .. })));
    // The old log beside the new file: SQLite would mix them without a word.
    let error = fixture.backend.acquire(&request("n", TTL)).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.message().contains("leases.db-wal"), "{error}");
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(fixture.dir.path().join(format!("leases.db{suffix}"))).expect("removed");
    }
    let seen = refusal(&fixture.backend, "n", TTL).await;
    assert_eq!(seen.holder.expect("held").token, theirs.token);
}

/// The log and the shared memory, once seen, are taken to be there for a millisecond: a burst of calls looks once.
async fn outlast_looks() {
    tokio::time::sleep(Duration::from_millis(2)).await;
}

#[tokio::test]
async fn a_removed_log_is_noticed() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "n", TTL).await;
    fs::remove_file(fixture.dir.path().join("leases.db-wal")).expect("removed");
    outlast_looks().await;
    assert!(matches!(renew(&fixture.backend, &held).await, RenewAnswer::Lost(LostCause::StoreForgot { .. })));
}

/// Processes on a removed -shm and on its successor have separate write locks: whoever finds that out is told,
/// before a renewal and after a grant alike.
#[tokio::test]
async fn a_removed_shared_memory_is_noticed() {
    let fixture = Fixture::new().await;
    let (held, other) = (grant(&fixture.backend, "n", TTL).await, grant(&fixture.backend, "o", TTL).await);
    fs::remove_file(fixture.dir.path().join("leases.db-shm")).expect("removed");
    outlast_looks().await;
    let RenewAnswer::Lost(LostCause::StoreForgot { detail }) = renew(&fixture.backend, &held).await else {
        panic!("not told")
    };
    assert!(detail.contains("-shm"), "{detail}");
    // What is in the log counts in the next one too; the name runs out.
    assert_eq!(refusal(&fixture.backend, "n", TTL).await.holder.expect("held").token, held.token);
    assert!(fixture.dir.path().join("leases.db-shm").exists(), "a new one is in use");
    assert!(matches!(release(&fixture.backend, &other).await, Released::Released));
    let rival = fixture.rival().await;
    assert!(grant(&rival, "o", TTL).await.token > other.token);
}

/// SQLite goes on with a removed -shm as long as any connection of the process has it open; nothing is granted
/// under locks that no other process sees.
#[tokio::test]
async fn a_removed_shared_memory_that_is_still_open_here_grants_nothing() {
    let fixture = Fixture::new().await;
    let shm = fixture.dir.path().join("leases.db-shm");
    let (first, second) = (&fixture.backend, fixture.rival().await);
    grant(first, "n", TTL).await;
    for replaced in [false, true] {
        fs::remove_file(&shm).expect("removed");
        if replaced {
            fs::write(&shm, "").expect("made");
        }
        outlast_looks().await;
        // The second backend has not noticed yet, and keeps the old one open.
        for error in [
            first.acquire(&request("free", TTL)).await.expect_err("not excluded"),
            SqliteBackend::connect(SqliteConfig::new(fixture.path()), fixture.context())
                .await
                .expect_err("not excluded"),
        ] {
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
            assert!(error.message().contains("-shm"), "{error}");
        }
        // It notices with its next call, and lets go; then each finds the other's grants.
        let error = second.acquire(&request("free", TTL)).await.err();
        println!("the second backend: {error:?}");
        refusal(first, "n", TTL).await;
        refusal(&second, "n", TTL).await;
    }
    // A connection of the program's own does the same.
    let mut own = fixture.raw().await;
    own.execute("SELECT * FROM leasehold_meta").await.expect("read");
    second.close().await;
    fs::remove_file(&shm).expect("removed");
    fs::write(&shm, "").expect("made");
    outlast_looks().await;
    let error = first.acquire(&request("free", TTL)).await.expect_err("not excluded");
    assert!(error.message().contains("-shm"), "{error}");
    drop(own);
    until("the connection is closed", Duration::from_secs(10), async || {
        first.acquire(&request("free", TTL)).await.ok()
    })
    .await;
}

/// A directory that is moved away for a while: a waiter must not make another in its place.
#[tokio::test]
async fn a_directory_that_is_moved_away_is_not_made_anew() {
    let fixture = Fixture::new().await;
    let (here, away) = (fixture.dir.path().join("d"), fixture.dir.path().join("away"));
    let backend = connect(here.join("leases.db"), &fixture.watchdog).await;
    let rival = connect(here.join("leases.db"), &fixture.watchdog).await;
    let held = grant(&backend, "n", TTL).await;
    fs::rename(&here, &away).expect("moved");
    let error = rival.acquire(&request("n", TTL)).await.expect_err("nothing is there");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(error.message().contains("directory") && error.is_retryable(), "{error}");
    assert!(!here.exists(), "it was made");
    fs::rename(&away, &here).expect("moved back");
    assert_eq!(refusal(&rival, "n", TTL).await.holder.expect("held").token, held.token);
    assert!(matches!(renew(&backend, &held).await, RenewAnswer::Renewed { .. }));
}

#[tokio::test]
async fn a_second_name_is_refused() {
    let fixture = Fixture::new().await;
    grant(&fixture.backend, "n", TTL).await;
    let second = fixture.dir.path().join("second.db");
    fs::hard_link(fixture.path(), &second).expect("linked");
    let error = refused(SqliteConfig::new(&second)).await;
    assert!(error.message().contains("hard links"), "{error}");
    let error = fixture.backend.acquire(&request("m", TTL)).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::ConfigInvalid);
    fs::remove_file(&second).expect("removed");
    grant(&fixture.backend, "m", TTL).await;
}

#[tokio::test]
async fn a_symbolic_link_leads_to_the_one_file() {
    let fixture = Fixture::new().await;
    grant(&fixture.backend, "n", TTL).await;
    let link = fixture.dir.path().join("link.db");
    std::os::unix::fs::symlink(fixture.path(), &link).expect("linked");
    refusal(&connect(link.clone(), &fixture.watchdog).await, "n", TTL).await;
    assert!(!fixture.dir.path().join("link.db-wal").exists());
    fs::remove_file(&link).expect("removed");
    std::os::unix::fs::symlink(fixture.dir.path().join("nowhere"), &link).expect("linked");
    refused(SqliteConfig::new(&link)).await;
}

#[tokio::test]
async fn network_file_systems_are_refused_unless_asked_for() {
    let fixture = Fixture::new().await;
    let mut config = SqliteConfig::new(fixture.path());
    for (magic, word) in [(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0x0102_1997, "9p"), (0x1234, "0x1234")] {
        config.fs_magic = Some(magic);
        let error = refused(config.clone()).await;
        assert_eq!(error.kind(), ErrorKind::ConfigInvalid);
        assert!(error.message().contains(word) && error.message().contains("allow_network_fs"), "{error}");
    }
    config.allow_network_fs = true;
    let backend = SqliteBackend::connect(config, fixture.context()).await.expect("asked for");
    grant(&backend, "n", TTL).await;
}

#[tokio::test]
async fn what_is_no_database_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("text.db");
    fs::write(&file, "this is a text, and long enough to have a header that is none".repeat(64))
        .expect("written");
    let error = refused(SqliteConfig::new(&file)).await;
    assert_eq!(error.kind(), ErrorKind::ConfigInvalid, "{error}");
    let error = refused(SqliteConfig::new(dir.path())).await;
    assert!(error.message().contains("directory"), "{error}");
    let error = refused(SqliteConfig::new(file.join("below a file"))).await;
    assert_eq!(error.kind(), ErrorKind::ConfigInvalid, "{error}");
    for memory in [":memory:", "file::memory:"] {
        assert!(refused(SqliteConfig::new(memory)).await.message().contains("memory://"));
    }
    let mut missing = SqliteConfig::new(dir.path().join("not there.db"));
    missing.schema = SchemaMode::Refuse;
    assert!(refused(missing).await.message().contains("leasehold init"));
    assert_eq!(fs::read_dir(dir.path()).expect("dir").count(), 1, "nothing was made");
}

/// A full database: nothing is granted, the error says so, and what is held goes on.
#[tokio::test]
async fn a_full_disk_refuses_and_changes_nothing() {
    let fixture = Fixture::new().await;
    let mut config = SqliteConfig::new(fixture.dir.path().join("small.db"));
    config.max_pages = Some(24);
    let backend = SqliteBackend::connect(config, fixture.context()).await.expect("connect");
    let first = grant(&backend, "first", TTL).await;
    let mut full = None;
    for n in 0..200 {
        match backend.acquire(&request(&format!("{n}/{}", "x".repeat(500)), TTL)).await {
            Ok(Attempt::Granted(_)) => {}
            Ok(Attempt::Held(seen)) => panic!("{seen:?}"),
            Err(e) => full = Some((n, e)),
        }
    }
    let (n, error) = full.expect("200 rows do not fit");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(error.message().contains("full"), "{error}");
    assert_own_words(&error);
    let inspection = backend.inspect(&name(&format!("{n}/{}", "x".repeat(500)))).await.expect("inspect");
    assert!(inspection.holders.is_empty(), "nothing was granted");
    assert!(matches!(renew(&backend, &first).await, RenewAnswer::Renewed { .. }));
    assert!(matches!(release(&backend, &first).await, Released::Released));
}

/// Undoes a mount, whatever becomes of the test.
struct Mounted(PathBuf);

impl Mounted {
    fn new(what: &[&str], on: &Path) -> Self {
        let done = std::process::Command::new("mount").args(what).arg(on).status().expect("mount is there");
        assert!(done.success(), "this test needs to mount: mount {what:?} {on:?}");
        Mounted(on.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A file system without room: the commit itself fails, and is not taken for a grant.
#[tokio::test]
async fn a_file_system_without_room_grants_nothing() {
    let mount = tempfile::tempdir().expect("dir");
    let _mounted = Mounted::new(&["-t", "tmpfs", "-o", "size=600k", "tmpfs"], mount.path());
    let watchdog = leasehold_core::Watchdog::start().expect("watchdog");
    let backend = connect(mount.path().join("leases.db"), &watchdog).await;
    let (mut granted, mut refusals) = (Vec::new(), 0);
    for n in 0..400 {
        match backend.acquire(&request(&format!("{n}/{}", "x".repeat(500)), TTL)).await {
            Ok(Attempt::Granted(grant)) => granted.push(grant),
            Ok(Attempt::Held(seen)) => panic!("{seen:?}"),
            Err(e) => {
                refusals += 1;
                assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
                assert_own_words(&e);
            }
        }
    }
    println!("{} granted, {refusals} refused", granted.len());
    assert!(refusals > 0 && !granted.is_empty());
    let rival = raw_count(&mount.path().join("leases.db")).await;
    assert!(rival >= granted.len() as i64, "every grant is in the file: {rival} of {}", granted.len());
}

async fn raw_count(path: &Path) -> i64 {
    let mut raw = raw(path.to_owned()).await;
    sqlx::query_scalar("SELECT count(*) FROM leasehold_leases WHERE owner IS NOT NULL")
        .fetch_one(&mut raw)
        .await
        .expect("count")
}

/// A file that was bind-mounted by itself would have another log at its other path.
#[tokio::test]
async fn a_file_that_is_a_mount_point_is_refused() {
    let fixture = Fixture::new().await;
    let target = fixture.dir.path().join("mounted.db");
    fs::write(&target, "").expect("made");
    let _mounted = Mounted::new(&["--bind", fixture.path().to_str().expect("UTF-8")], &target);
    let error = refused(SqliteConfig::new(&target)).await;
    assert!(error.message().contains("mount point"), "{error}");
}

/// Another program's writes are none of our business, and ours touch only what is ours.
#[tokio::test]
async fn the_users_own_tables_and_version_are_left_alone() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("app.db");
    fs::write(&path, "").expect("made");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
    let mut app = raw(path.clone()).await;
    app.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (7); PRAGMA user_version = 41")
        .await
        .expect("app schema");
    let watchdog = leasehold_core::Watchdog::start().expect("watchdog");
    let backend = connect(path.clone(), &watchdog).await;
    grant(&backend, "n", TTL).await;
    let version: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut app).await.expect("version");
    let orders: i64 = sqlx::query_scalar("SELECT id FROM orders").fetch_one(&mut app).await.expect("orders");
    assert_eq!((version, orders, mode(&path)), (41, 7, 0o640));
    let foreign: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM sqlite_schema
          WHERE name <> 'orders' AND name NOT LIKE 'leasehold\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    )
    .fetch_one(&mut app)
    .await
    .expect("schema");
    assert_eq!(foreign, 0);
}

async fn old_file(path: &Path) -> SqliteConnection {
    fs::write(path, "").expect("made");
    let mut raw = raw(path.to_owned()).await;
    raw.execute(include_str!("fixtures/version1.sql")).await.expect("an old file");
    raw
}

/// A file of the first version, with a lease in it, is migrated; what was held stays held.
#[tokio::test]
async fn an_old_file_is_migrated() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("leases.db");
    let mut raw = old_file(&path).await;
    let watchdog = leasehold_core::Watchdog::start().expect("watchdog");
    let mut refuse = SqliteConfig::new(&path);
    refuse.schema = SchemaMode::Refuse;
    assert!(refused(refuse.clone()).await.message().contains("leasehold init"));
    let backend = connect(path.clone(), &watchdog).await;
    let version: i64 = sqlx::query_scalar("SELECT value FROM leasehold_meta WHERE key = 'schema'")
        .fetch_one(&mut raw)
        .await
        .expect("version");
    assert_eq!(version, 2);
    let seen = refusal(&backend, "held/before", TTL).await;
    assert_eq!(seen.holder.expect("a holder").token, token(1_700_000_000_000_000));
    let next = grant(&backend, "released/before", TTL).await;
    assert!(next.token > token(1_700_000_000_000_000));
    // The floor of the old file counts.
    assert!(grant(&backend, "new", TTL).await.token > token(1_700_000_000_000_005));
    // Now it is what it should be: nothing is left to do.
    let again = SqliteBackend::connect(refuse, watchdog.context()).await.expect("of this version");
    again.prepare().await.expect("prepared");
    again.probe().await.expect("alive");
}

#[tokio::test]
async fn a_newer_file_is_refused() {
    let fixture = Fixture::new().await;
    let mut raw = fixture.raw().await;
    for newer in ["99", "'two'", "-3"] {
        let sql = format!("UPDATE leasehold_meta SET value = {newer} WHERE key = 'schema'");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut raw).await.expect("ok");
        let error = refused(SqliteConfig::new(fixture.path())).await;
        assert_eq!(error.kind(), ErrorKind::ConfigInvalid);
        assert!(error.message().contains("Update this program"), "{error}");
    }
}

#[tokio::test]
async fn missing_tables_name_the_command_that_makes_them() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("app.db");
    raw_created(&path).await.execute("CREATE TABLE orders (id INTEGER)").await.expect("table");
    let mut refuse = SqliteConfig::new(&path);
    refuse.schema = SchemaMode::Refuse;
    assert!(refused(refuse).await.message().contains("leasehold init"));
    // Tables that vanish under an open backend.
    let fixture = Fixture::new().await;
    fixture.raw().await.execute("DROP TABLE leasehold_leases").await.expect("dropped");
    let error = fixture.backend.acquire(&request("n", TTL)).await.expect_err("no table");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::ConfigInvalid, Effect::None), "{error}");
}

async fn raw_created(path: &Path) -> SqliteConnection {
    fs::write(path, "").expect("made");
    raw(path.to_owned()).await
}

/// B83: another process holds the file's write lock; who asks is told who holds the name, or that it is busy.
#[tokio::test]
async fn a_locked_file_is_busy_and_a_held_name_held() {
    let fixture = Fixture::new().await;
    let held = grant(&fixture.backend, "held", TTL).await;
    let mut config = SqliteConfig::new(fixture.path());
    config.busy_timeout = Duration::from_millis(200);
    let hasty = SqliteBackend::connect(config, fixture.context()).await.expect("connect");
    let mut raw = fixture.raw().await;
    raw.execute("BEGIN EXCLUSIVE").await.expect("locked");
    let started = std::time::Instant::now();
    let seen = refusal(&hasty, "held", TTL).await;
    assert_eq!(seen.holder.expect("a holder").token, held.token);
    println!("told who holds it after {:?}", started.elapsed());
    let error = hasty.acquire(&request("free", TTL)).await.expect_err("busy");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(error.message().contains("busy"), "{error}");
    assert_own_words(&error);
    assert!(started.elapsed() < Duration::from_secs(5), "the busy timeout ends it");
    assert!(hasty.inspect(&name("held")).await.expect("inspect").holder().is_some(), "looks go on");
    raw.execute("ROLLBACK").await.expect("unlocked");
    grant(&hasty, "free", TTL).await;
}

/// Plays an unprivileged user.
#[test]
#[ignore = "a part that other tests of this file start as a process"]
fn child() {
    let path = PathBuf::from(std::env::var(FILE).expect("a file"));
    assert!(
        fs::OpenOptions::new().append(true).open(&path).is_err() || !can_make_beside(&path),
        "not unprivileged"
    );
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    runtime.block_on(async {
        let error = refused(SqliteConfig::new(&path)).await;
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        println!("refused: {error}");
    });
}

fn can_make_beside(path: &Path) -> bool {
    fs::write(path.with_extension("probe"), "").is_ok()
}

/// Read-only file, read-only directory, and a new file in a read-only directory; as a user without rights.
#[tokio::test]
async fn missing_rights_are_told() {
    const NOBODY: u32 = 65534;
    let root = tempfile::tempdir().expect("dir");
    fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).expect("set");
    let watchdog = leasehold_core::Watchdog::start().expect("watchdog");
    // The test program itself must be readable for that user.
    let program = root.path().join("program");
    fs::copy(std::env::current_exe().expect("this program"), &program).expect("copied");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("set");
    for (directory_mode, file_mode) in [(0o777, Some(0o644)), (0o755, Some(0o666)), (0o755, None)] {
        let directory = root.path().join(format!("{directory_mode:o}-{}", file_mode.is_some()));
        fs::create_dir_all(&directory).expect("made");
        let path = directory.join("leases.db");
        if let Some(mode) = file_mode {
            connect(path.clone(), &watchdog).await.close().await;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        }
        fs::set_permissions(&directory, fs::Permissions::from_mode(directory_mode)).expect("set");
        let template = in_role("unprivileged", &path);
        let mut command = std::process::Command::new(&program);
        command.args(template.get_args()).env(ROLE, "unprivileged").env(FILE, &path).current_dir("/");
        command.uid(NOBODY).gid(NOBODY);
        let output = command.output().expect("started");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("refused: sqlite: connect"), "{text}");
        if let Some(mode) = file_mode {
            let file = fs::metadata(&path).expect("it is there");
            assert_eq!((file.mode() & 0o7777, file.uid()), (mode, 0), "left alone");
        }
    }
}
