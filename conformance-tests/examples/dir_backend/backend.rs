//! Leases in a directory: one file a name, for the processes of one machine.
//!
//! 1. Every call takes the lock of the directory (`flock` on `.lock`), which the kernel frees when a
//!    process dies. Under it the call reads the record of its name, decides, and writes.
//! 2. A file is replaced by a rename: whoever is killed in the middle leaves the old one.
//! 3. `.floor` holds the highest token that was ever granted, and is written before the record.
//! 4. Records count on the boot clock and live in a folder of this boot. After a reboot nobody is
//!    left who could hold one; the floor stays.
//!
//! # What can go wrong, and where it is handled
//! * A release overtakes its abandoned acquire: calls stand in one line (`Blocking`).
//! * A file that is no record: `InvalidData`, and nothing is written.
//! * A wall clock that steps back: tokens count on from the floor.
//! * The machine loses power: files are not synced. After it the directory may be empty, and the wall
//!   clock alone is the floor: hence `Durability::Process`.
//! * The directory lies on a network: `flock` and the boot clock are one machine's. Do not do it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    AcquireRequest, Attempt, BackendContext, BackendError, Blocking, BootTime, Facets, Inspection,
    LeaseBackend, LeaseName, PollWaiter, Profile, Record, ReleaseRequest, Released, RenewAnswer, Renewal,
    Token, Waiter, Write, async_trait,
};

/// No call waits longer for its turn, the lock and the disk.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Leases in a directory.
#[derive(Clone, Debug)]
pub(crate) struct DirBackend {
    dir: PathBuf,
    profile: Profile,
    blocking: Blocking,
    context: BackendContext,
}

impl DirBackend {
    /// The leases in `dir`, which is made where it is missing.
    ///
    /// # Errors
    /// The kernel's, when the directory cannot be made.
    pub(crate) fn open(dir: impl Into<PathBuf>, context: BackendContext) -> io::Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir)?;
        let blocking = Blocking::new("dir", context.clone(), CALL_LIMIT);
        Ok(DirBackend { dir, profile: Profile::new("dir"), blocking, context })
    }

    /// Runs `work` under the lock of the directory, off the runtime, in the order of the calls.
    async fn call<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl FnOnce(&Locked<'_>) -> io::Result<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let (dir, clock) = (self.dir.clone(), Arc::clone(self.context.clock()));
        let locked = move || work(&Locked::of(&dir, clock.now(), clock.unix_micros())?);
        self.blocking.call(op, locked).await
    }
}

/// The directory while its lock is held, with the time that counts for the call.
struct Locked<'a> {
    dir: &'a Path,
    boot: String,
    now: BootTime,
    clock_us: u64,
    _lock: File,
}

impl<'a> Locked<'a> {
    fn of(dir: &'a Path, now: BootTime, clock_us: u64) -> io::Result<Self> {
        let lock = File::create(dir.join(".lock"))?;
        lock.lock()?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Locked { dir, boot: boot.trim_end().to_owned(), now, clock_us, _lock: lock })
    }

    fn path(&self, name: &LeaseName) -> PathBuf {
        self.dir.join(&self.boot).join(name.file_path("lease"))
    }

    fn read(&self, name: &LeaseName) -> io::Result<Option<Record>> {
        match present(fs::read_to_string(self.path(name)))? {
            Some(text) => Ok(Some(Record::from_text(&text)?)),
            None => Ok(None),
        }
    }

    fn floor(&self) -> io::Result<Option<Token>> {
        let text = present(fs::read_to_string(self.dir.join(".floor")))?;
        let token = text.map(|text| text.parse()).transpose();
        token.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!(".floor: {error}")))
    }

    /// Does what was decided.
    fn write(&self, name: &LeaseName, write: Write) -> io::Result<()> {
        let path = self.path(name);
        match write {
            Write::Nothing => Ok(()),
            Write::Remove(_) => fs::remove_file(path),
            Write::Put(record) => {
                if self.floor()? < Some(record.token) {
                    self.replace(&self.dir.join(".floor"), &record.token.to_string())?;
                }
                self.replace(&path, &record.to_text())
            }
        }
    }

    fn replace(&self, path: &Path, text: &str) -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(self.dir))?;
        let new = self.dir.join(".new");
        fs::write(&new, text)?;
        fs::rename(new, path)
    }

    fn renew(&self, renewal: &Renewal) -> io::Result<RenewAnswer> {
        let name = &renewal.claim.name;
        let (answer, write) = Record::renew(self.read(name)?, renewal, self.now, self.clock_us)?;
        self.write(name, write).map(|()| answer)
    }
}

/// None for a file that is not there.
fn present(text: io::Result<String>) -> io::Result<Option<String>> {
    match text {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => text.map(Some),
    }
}

#[async_trait]
impl LeaseBackend for DirBackend {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        self.profile.refuse(request)?;
        let request = request.clone();
        let decide = move |dir: &Locked<'_>| {
            let (found, floor) = (dir.read(&request.name)?, dir.floor()?);
            let (attempt, write) = Record::acquire(found, &request, dir.now, dir.clock_us, floor)?;
            dir.write(&request.name, write).map(|()| attempt)
        };
        self.call("acquire", decide).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>> {
        // One call each: one that fails says nothing of the others.
        let calls = renewals.iter().cloned().map(|r| self.call("renew", move |dir| dir.renew(&r)));
        let mut answers = Vec::with_capacity(renewals.len());
        for call in calls {
            answers.push(call.await);
        }
        answers
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released, BackendError> {
        let request = request.clone();
        let decide = move |dir: &Locked<'_>| {
            let name = &request.claim.name;
            let (released, write) = Record::release(dir.read(name)?, &request, dir.now);
            dir.write(name, write).map(|()| released)
        };
        self.call("release", decide).await
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        let name = name.clone();
        let look = move |dir: &Locked<'_>| {
            Ok(Record::inspect(dir.read(&name)?.as_ref(), &name, dir.now, dir.floor()?))
        };
        self.call("inspect", look).await
    }

    async fn waiter(&self, request: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError> {
        self.profile.refuse(request)?;
        // Only to refuse a closed store: looking again needs no subscription.
        self.call("waiter", |_| Ok(())).await?;
        Ok(Box::new(PollWaiter::new(self.context.clone())))
    }

    fn facets(&self) -> Facets<'_> {
        Facets::default()
    }

    async fn close(&self) {
        self.blocking.close();
    }
}
