//! A backend over a directory of files, in the length of a screen or two: what a third party writes.
//!
//! ```sh
//! cargo run -p leasehold-conformance --example dir_backend -- /tmp/leases
//! ```
//!
//! takes a lease there and gives it back; run two at once. `tests/dir` runs the suite on it.

mod backend;

use std::time::Duration;

use backend::DirBackend;
use leasehold_core::{LeaseClient, Settings, Wait, Watchdog};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("say which directory")?;
    let watchdog = Watchdog::start()?;
    let client = LeaseClient::new(DirBackend::open(dir, watchdog.context())?, &watchdog);
    let name = "example".parse()?;
    let lease = client.acquire(&name, &Settings::new(), Wait::AtMost(Duration::from_secs(60))).await?;
    println!("held with token {}", lease.token());
    lease.run(tokio::time::sleep(Duration::from_secs(2))).await?;
    lease.release().await?;
    client.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
