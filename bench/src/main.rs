//! The measurements as a program: `cargo xtask bench`, or `cargo run --release -p leasehold-bench`.

use std::process::ExitCode;
use std::time::Duration;

use leasehold_bench::alloc::Counting;
use leasehold_bench::memory::Failure;
use leasehold_bench::redis::{self, Effort};
use leasehold_bench::report::Report;
use leasehold_bench::{handover, held, machine, memory, sqlite};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const USAGE: &str = "\
Usage: leasehold-bench [OPTIONS] [PART...]

Parts: memory, held, sqlite, handover, redis (all when none is named)

      --quick   fewer and shorter rounds: a look, not a measurement
      --json    print JSON instead of a table
      --check   fail when a target is missed
";

const PARTS: &[&str] = &["memory", "held", "sqlite", "handover", "redis"];

#[derive(Debug, Default)]
struct Options {
    quick: bool,
    json: bool,
    check: bool,
    parts: Vec<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options::default();
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--quick" => options.quick = true,
            "--json" => options.json = true,
            "--check" => options.check = true,
            part if PARTS.contains(&part) => options.parts.push(arg),
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(options)
}

fn measure(options: &Options) -> Result<Report, Failure> {
    let wants = |part: &str| options.parts.is_empty() || options.parts.iter().any(|p| p == part);
    let mut report = Report::default();
    if wants("memory") {
        eprintln!("memory ...");
        // In a thread of its own: the binding to one processor ends with it.
        let (rounds, pairs) = if options.quick { (5, 5_000) } else { (21, 50_000) };
        let part = std::thread::spawn(move || {
            let mut part = Report::default();
            machine::pin_to_one_processor()?;
            memory::measure(&mut part, rounds, pairs)?;
            Ok::<_, Failure>(part)
        });
        report.append(part.join().map_err(|_| "the measurement panicked")??);
    }
    if wants("held") {
        eprintln!("held ...");
        let (ttl, rounds) = if options.quick { (4, 1) } else { (9, 3) };
        held::measure(&mut report, Duration::from_secs(ttl), rounds)?;
    }
    if wants("sqlite") {
        eprintln!("sqlite ...");
        let (rounds, pairs) = if options.quick { (21, 10) } else { (201, 20) };
        sqlite::measure(&mut report, rounds, pairs)?;
    }
    if wants("handover") {
        eprintln!("handover ...");
        handover::measure(&mut report, if options.quick { 30 } else { 300 })?;
    }
    if wants("redis") {
        eprintln!("redis ...");
        let effort = if options.quick {
            Effort { rounds: 5, pairs: 200, handovers: 100, periods: 1 }
        } else {
            Effort { rounds: 41, pairs: 500, handovers: 500, periods: 3 }
        };
        redis::measure(&mut report, effort)?;
    }
    Ok(report)
}

fn main() -> ExitCode {
    if let Some(peer) = handover::Peer::from_args() {
        return match peer.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("the peer failed: {failure}");
                ExitCode::FAILURE
            }
        };
    }
    let options = match options() {
        Ok(options) => options,
        Err(usage) => {
            eprint!("{usage}");
            return ExitCode::from(64);
        }
    };
    match measure(&options) {
        Ok(report) => {
            print!("{}", if options.json { report.json() + "\n" } else { report.table() });
            let missed = report.missed();
            for line in &missed {
                eprintln!("missed: {}", line.what);
            }
            if options.check && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(failure) => {
            eprintln!("the measurement failed: {failure}");
            ExitCode::FAILURE
        }
    }
}
