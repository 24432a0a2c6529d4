//! The commands for people who look after leases, and for jobs that look after their own.

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{
    BackendError, Fenced, ForceRelease, HolderView, Inspection, LeaseAdmin, LeaseClient, LeaseName, Page,
    Released, Token, Watchdog,
};
use serde_json::{Value, json};

use crate::args::{CheckArgs, Command, FenceArgs, ForceReleaseArgs, InspectArgs, ListArgs, Output, token};
use crate::config::Surroundings;
use crate::duration::show;
use crate::exit::{Ending, Exit, Failure, of_kind};
use crate::run::report::write_line;

/// Runs one of these commands.
pub(crate) fn run(store: Option<&str>, op_timeout: Duration, command: Command) -> Ending {
    let done = with_client(store, op_timeout, command);
    done.unwrap_or_else(|failure| {
        write_line(&format!("leasehold: {}", failure.message));
        failure.ending
    })
}

fn with_client(store: Option<&str>, op_timeout: Duration, command: Command) -> Result<Ending, Failure> {
    // What needs no store is refused before one is asked.
    let question = Question::new(command)?;
    let store = Surroundings::of_process().store(store)?;
    let runtime = crate::connect::runtime()?;
    let result = runtime.block_on(async {
        let watchdog = Watchdog::start().map_err(|e| Failure::new(Exit::Internal, e))?;
        let client = crate::connect::client(&store, &watchdog, op_timeout).await?;
        let context = watchdog.context();
        let answer = tokio::select! {
            answer = question.ask(&client) => answer,
            () = context.sleep_until(context.now() + op_timeout) => Err(Failure::new(
                Exit::Unavailable,
                format_args!("{} did not answer within {}", store.url, show(op_timeout)),
            )),
        };
        crate::connect::finish(&client, &watchdog, Duration::from_millis(500)).await;
        answer
    });
    runtime.shutdown_background();
    result
}

/// A command whose arguments are complete.
enum Question {
    List(ListArgs),
    Inspect(InspectArgs),
    ForceRelease(ForceReleaseArgs),
    Check { name: LeaseName, token: Token, quiet: bool },
    Fence { name: LeaseName, token: Token, quiet: bool },
    Init,
}

impl Question {
    fn new(command: Command) -> Result<Self, Failure> {
        Ok(match command {
            Command::List(args) => Question::List(args),
            Command::Inspect(args) => Question::Inspect(args),
            Command::ForceRelease(args) => Question::ForceRelease(args),
            Command::Check(CheckArgs { name, token, quiet }) => Question::Check {
                name: name.map_or_else(name_of_job, Ok)?,
                token: token.map_or_else(token_of_job, Ok)?,
                quiet,
            },
            Command::Fence(FenceArgs { name, token, quiet }) => {
                Question::Fence { name, token: token.map_or_else(token_of_job, Ok)?, quiet }
            }
            Command::Init => Question::Init,
            Command::Run(_) | Command::Explain { .. } => {
                return Err(Failure::new(Exit::Internal, "this command asks no store"));
            }
        })
    }

    async fn ask(&self, client: &LeaseClient) -> Result<Ending, Failure> {
        match self {
            Question::List(args) => list(client, args).await,
            Question::Inspect(args) => inspect(client, args).await,
            Question::ForceRelease(args) => force_release(client, args).await,
            Question::Check { name, token, quiet } => check(client, name, *token, *quiet).await,
            Question::Fence { name, token, quiet } => fence(client, name, *token, *quiet).await,
            Question::Init => init(client).await,
        }
    }
}

fn of_job(variable: &str, flag: &str) -> Result<String, Failure> {
    std::env::var(variable).map_err(|_| {
        Failure::usage(format_args!(
            "{variable} is not set: run this inside a job of `leasehold run`, or give {flag}"
        ))
    })
}

fn name_of_job() -> Result<LeaseName, Failure> {
    of_job("LEASEHOLD_NAME", "NAME")?.parse().map_err(|e| Failure::usage(format_args!("LEASEHOLD_NAME: {e}")))
}

fn token_of_job() -> Result<Token, Failure> {
    token(&of_job("LEASEHOLD_TOKEN", "--token")?)
        .map_err(|e| Failure::usage(format_args!("LEASEHOLD_TOKEN: {e}")))
}

fn failed(error: BackendError) -> Failure {
    Failure::new(of_kind(error.kind()), error)
}

fn admin(client: &LeaseClient) -> Result<&dyn LeaseAdmin, Failure> {
    client.backend().facets().admin.ok_or_else(|| {
        Failure::config(format_args!("{} stores have no operations for people", client.profile().name))
    })
}

async fn list(client: &LeaseClient, args: &ListArgs) -> Result<Ending, Failure> {
    let admin = admin(client)?;
    let mut found = Vec::new();
    let mut page = Page::first();
    loop {
        let piece = admin.list(&args.prefix, &page).await.map_err(failed)?;
        let full = piece.len() >= page.limit;
        found.extend(piece);
        match found.last() {
            Some(last) if full => page = Page::after(last.name.clone()),
            _ => break,
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    match args.output {
        Output::Json => print(&to_json_text(&Value::Array(found.iter().map(inspection_json).collect()))),
        Output::Table => print(&table(&found)),
    }
}

async fn inspect(client: &LeaseClient, args: &InspectArgs) -> Result<Ending, Failure> {
    let inspection = client.inspect(&args.name).await.map_err(failed)?;
    match args.output {
        Output::Json => print(&to_json_text(&inspection_json(&inspection))),
        Output::Table => print(&card(&inspection)),
    }
}

async fn force_release(client: &LeaseClient, args: &ForceReleaseArgs) -> Result<Ending, Failure> {
    let admin = admin(client)?;
    let name = &args.name;
    let token = match (&args.token, &args.holder) {
        (Some(token), _) => *token,
        (None, holder) => {
            let fingerprint = holder.as_deref().unwrap_or_default();
            let inspection = client.inspect(name).await.map_err(failed)?;
            match inspection.holders.iter().find(|holder| holder.fingerprint == fingerprint) {
                Some(holder) => holder.token,
                None => {
                    return Err(Failure::new(
                        Exit::Lost,
                        format_args!(
                            "#{fingerprint} does not hold {name:?}: {}. Nothing changed",
                            held(&inspection)
                        ),
                    ));
                }
            }
        }
    };
    let by = args.by.clone().unwrap_or_else(who);
    let now = leasehold::Clock::now(&leasehold::SystemClock);
    let mut request = ForceRelease::new(name.clone(), token, by, args.reason.clone(), now);
    request.keep_for = args.keep_for;
    match admin.force_release(&request).await.map_err(failed)? {
        Released::Released => {
            let kept = match args.keep_for {
                Duration::ZERO => "it is free now".to_owned(),
                keep_for => format!("it stays taken for {}", show(keep_for)),
            };
            print(&format!(
                "Ended the grant of {name:?} with token {token}; {kept}.\n\
                 The old holder is not told before its next renewal, and may work on until then: only a resource \
                 that compares tokens refuses it.\n"
            ))
        }
        Released::AlreadyReleased => print(&format!("Nobody holds {name:?}: nothing to do.\n")),
        Released::NotHeld { by } => {
            let now = by.map_or_else(|| "somebody else holds it".to_owned(), |holder| describe(&holder));
            Err(Failure::new(
                Exit::Lost,
                format_args!("{name:?} is no longer held with token {token}: {now}. Nothing changed"),
            ))
        }
    }
}

async fn check(client: &LeaseClient, name: &LeaseName, token: Token, quiet: bool) -> Result<Ending, Failure> {
    let inspection = client.inspect(name).await.map_err(failed)?;
    if inspection.holders.iter().any(|holder| holder.token == token) {
        return Ok(Exit::Ok.into());
    }
    stale(
        quiet,
        format_args!("{name:?} is no longer held with token {token}: {}. Stop the work", held(&inspection)),
    )
}

async fn fence(client: &LeaseClient, name: &LeaseName, token: Token, quiet: bool) -> Result<Ending, Failure> {
    let fenced = client
        .backend()
        .facets()
        .fenced
        .ok_or_else(|| Failure::config(format_args!("{} stores keep no fence", client.profile().name)))?;
    match fenced.advance(name, token).await.map_err(failed)? {
        Fenced::Accepted => Ok(Exit::Ok.into()),
        Fenced::Stale(e) => stale(quiet, format_args!("{name:?}: {e}")),
    }
}

/// Ends with "lost or stale", with or without a word.
fn stale(quiet: bool, message: std::fmt::Arguments<'_>) -> Result<Ending, Failure> {
    if quiet { Ok(Exit::Lost.into()) } else { Err(Failure::new(Exit::Lost, message)) }
}

async fn init(client: &LeaseClient) -> Result<Ending, Failure> {
    admin(client)?.prepare().await.map_err(failed)?;
    print(&format!("The {} store is ready.\n", client.profile().name))
}

/// Writes to stdout. A reader that left is no failure.
fn print(text: &str) -> Result<Ending, Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Internal, format_args!("cannot write to stdout: {e}")))
        }
        _ => Ok(Exit::Ok.into()),
    }
}

pub(crate) fn print_line(text: &str) -> Ending {
    print(&format!("{text}\n")).unwrap_or_else(|failure| failure.ending)
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A wall-clock time for people and JSON.
pub(crate) fn rfc3339(unix_ms: u64) -> String {
    // The formatter panics beyond the year 9999: what a store holds is untrusted.
    const YEAR_9999_MS: u64 = 253_402_300_799_999;
    let time = UNIX_EPOCH + Duration::from_millis(unix_ms.min(YEAR_9999_MS));
    humantime::format_rfc3339_millis(time).to_string()
}

/// `user@host`, as far as the environment tells.
pub(crate) fn who() -> String {
    let clean = |text: String| text.chars().filter(|c| !c.is_control()).take(64).collect::<String>();
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).map(clean);
    let user = user
        .ok()
        .filter(|user| !user.is_empty())
        .unwrap_or_else(|| format!("uid{}", rustix::process::getuid().as_raw()));
    let host = clean(rustix::system::uname().nodename().to_string_lossy().into_owned());
    format!("{user}@{host}")
}

fn describe(holder: &HolderView) -> String {
    let label = match holder.info.label() {
        "" => String::new(),
        label => format!("{label} "),
    };
    format!("held by {label}(#{}) with token {}", holder.fingerprint, holder.token)
}

fn held(inspection: &Inspection) -> String {
    match (inspection.holder(), inspection.free_in) {
        (Some(holder), _) => describe(holder),
        (None, Some(free_in)) => format!("nobody holds it, and it stays taken for {}", show(free_in)),
        (None, None) => "nobody holds it".to_owned(),
    }
}

pub(crate) fn holder_json(holder: &HolderView) -> Value {
    let meta: serde_json::Map<String, Value> =
        holder.info.meta().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    json!({
        "fingerprint": holder.fingerprint,
        "token": holder.token.to_string(),
        "label": holder.info.label(),
        "meta": meta,
        "acquired_at": holder.acquired_unix_ms.map(rfc3339),
        "remaining_ms": holder.remaining.map(millis),
    })
}

fn inspection_json(inspection: &Inspection) -> Value {
    json!({
        "name": inspection.name.as_str(),
        "holders": inspection.holders.iter().map(holder_json).collect::<Vec<_>>(),
        "waiting": inspection.waiting,
        "free_in_ms": inspection.free_in.map(millis),
        "token_floor": inspection.token_floor.map(|token| token.to_string()),
    })
}

fn to_json_text(value: &Value) -> String {
    format!("{value:#}\n")
}

/// One row a holder; a name that is kept without one has a row too.
fn table(found: &[Inspection]) -> String {
    let mut rows = vec![["NAME", "HOLDER", "TOKEN", "OWNER", "AGE", "FREE-IN", "WAITING"].map(str::to_owned)];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for inspection in found {
        let free_in = inspection.free_in.map_or("-".to_owned(), show);
        let waiting = inspection.waiting.map_or("-".to_owned(), |n| n.to_string());
        let name = inspection.name.to_string();
        if inspection.holders.is_empty() {
            let dash = || "-".to_owned();
            rows.push([name, dash(), dash(), "(kept)".to_owned(), dash(), free_in, waiting]);
            continue;
        }
        for holder in &inspection.holders {
            let age = holder.acquired_unix_ms.map(|ms| now.saturating_sub(Duration::from_millis(ms)));
            let label = match holder.info.label() {
                "" => "-",
                label => label,
            };
            rows.push([
                name.clone(),
                format!("#{}", holder.fingerprint),
                holder.token.to_string(),
                label.to_owned(),
                age.map_or("-".to_owned(), show),
                free_in.clone(),
                waiting.clone(),
            ]);
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn card(inspection: &Inspection) -> String {
    let mut text = format!("name      {}\n", inspection.name);
    if inspection.holders.is_empty() {
        text.push_str(&format!("state     {}\n", held(inspection)));
    }
    for holder in &inspection.holders {
        text.push_str(&format!("holder    #{}\ntoken     {}\n", holder.fingerprint, holder.token));
        if !holder.info.label().is_empty() {
            text.push_str(&format!("owner     {}\n", holder.info.label()));
        }
        for (key, value) in holder.info.meta() {
            text.push_str(&format!("meta      {key}={value}\n"));
        }
        if let Some(ms) = holder.acquired_unix_ms {
            text.push_str(&format!("since     {}\n", rfc3339(ms)));
        }
        if let Some(remaining) = holder.remaining {
            text.push_str(&format!("ends in   {} unless renewed\n", show(remaining)));
        }
    }
    if let Some(waiting) = inspection.waiting {
        text.push_str(&format!("waiting   {waiting}\n"));
    }
    if let Some(floor) = inspection.token_floor {
        text.push_str(&format!("floor     {floor}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_any_store_are_shown_without_a_panic() {
        assert_eq!(rfc3339(1_790_000_000_123), "2026-09-21T14:13:20.123Z");
        assert!(rfc3339(u64::MAX).starts_with("9999-"));
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }

    #[test]
    fn columns_line_up_and_kept_names_have_a_row() {
        let mut kept = Inspection::free("b".parse().expect("legal"));
        kept.free_in = Some(Duration::from_secs(3));
        let mut held = Inspection::free("long/name".parse().expect("legal"));
        let token = Token::new(123_456_789).expect("legal");
        held.holders.push(HolderView::new(&leasehold::OwnerId::random(), token));
        let text = table(&[kept.clone(), held.clone()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        let token_column = lines[0].find("TOKEN").expect("a column");
        assert_eq!(lines[2].find("123456789"), Some(token_column));
        assert!(lines[1].contains("(kept)") && lines[1].contains("3.0s"));
        assert!(card(&kept).contains("nobody holds it, and it stays taken for 3.0s"));
        assert_eq!(inspection_json(&held)["holders"][0]["token"], "123456789");
    }
}
