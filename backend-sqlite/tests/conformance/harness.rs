//! A SQLite file as a store to be judged.

use std::sync::Arc;

use leasehold_conformance::{Fault, FaultInjector, Harness};
use leasehold_core::{BackendContext, BackendError, LeaseBackend, LeaseName, async_trait};
use leasehold_sqlite::{SqliteBackend, SqliteConfig};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

/// A file of its own for each case, in memory: the cases are not about the speed of the disk.
pub(crate) struct Sqlite(tempfile::TempDir);

impl Default for Sqlite {
    fn default() -> Self {
        Sqlite(tempfile::tempdir_in("/dev/shm").expect("a directory"))
    }
}

impl Sqlite {
    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("leases.db")
    }
}

#[async_trait]
impl Harness for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    async fn connect(&self, context: BackendContext) -> Result<Arc<dyn LeaseBackend>, BackendError> {
        Ok(Arc::new(SqliteBackend::connect(SqliteConfig::new(self.path()), context).await?))
    }

    fn on_context_clock(&self) -> bool {
        true
    }

    fn fault(&self) -> Option<&dyn FaultInjector> {
        Some(self)
    }

    fn ignored(&self) -> &'static str {
        include_str!("ignored.txt")
    }
}

#[async_trait]
impl FaultInjector for Sqlite {
    fn offers(&self, fault: Fault) -> Result<(), &'static str> {
        match fault {
            Fault::LoseRecord | Fault::CorruptRecord => Ok(()),
            Fault::LoseNextReply => {
                Err("a statement runs in this process: between it and the backend nothing gets lost")
            }
            _ => Err("nobody wrote it yet"),
        }
    }

    async fn inject(&self, fault: Fault, name: &LeaseName) -> Result<(), String> {
        let sql = match fault {
            Fault::LoseRecord => "DELETE FROM leasehold_leases WHERE name = ?1",
            _ => "UPDATE leasehold_leases SET format = 99 WHERE name = ?1",
        };
        let mut raw = SqliteConnectOptions::new()
            .filename(self.path())
            .busy_timeout(std::time::Duration::from_secs(10))
            .connect()
            .await
            .map_err(|e| e.to_string())?;
        let done = sqlx::query(sql).bind(name.as_str()).execute(&mut raw).await.map_err(|e| e.to_string())?;
        if done.rows_affected() == 1 { Ok(()) } else { Err(format!("{name:?} has no row")) }
    }
}
