//! The commands for people who look after leases, and for jobs that look after their own.

use std::io::Write;
use std::time::Duration;

use leasehold::{
    BackendError, ErrorKind, Fenced, ForceRelease, LeaseAdmin, LeaseClient, LeaseName, Page, Released, Token,
    Watchdog,
};
use serde_json::Value;

use crate::args::{
    CheckArgs, Command, EpochCommand, FenceArgs, ForceReleaseArgs, InspectArgs, ListArgs, Output, token,
};
use crate::config::Surroundings;
use crate::connect::Patience;
use crate::duration::show;
use crate::exit::{Ending, Exit, Failure, of_kind};
use crate::run::report::write_line;
use crate::show::{card, describe, held, inspection_json, table, to_json_text, who};

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
    let mut store = Surroundings::of_process().store(store)?;
    if matches!(question, Question::Init) && store.url.params().iter().any(|(name, _)| name == "schema") {
        // Making the tables is what was asked for, whatever the URL allows other commands.
        store.url = store.url.with_param("schema", "auto");
    }
    let runtime = crate::connect::runtime()?;
    let result = runtime.block_on(async {
        let watchdog = Watchdog::start().map_err(|e| Failure::new(Exit::Internal, e))?;
        let client = crate::connect::client(&store, &watchdog, op_timeout, Patience::None).await?;
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
    RaiseEpoch,
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
            Command::Epoch(EpochCommand::Raise) => Question::RaiseEpoch,
            Command::Run(_) | Command::Conformance(_) | Command::Explain { .. } => {
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
            Question::RaiseEpoch => raise_epoch(client).await,
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

/// At most so many names that cannot be read are told one by one.
const UNREADABLE_TOLD_MAX: usize = 8;

/// Shows what can be read, and then fails if that was not all.
async fn list(client: &LeaseClient, args: &ListArgs) -> Result<Ending, Failure> {
    let admin = admin(client)?;
    let mut found = Vec::new();
    let mut trouble = Vec::new();
    let mut page = Page::first();
    loop {
        let piece = match admin.list(&args.prefix, &page).await {
            // What was listed before it is of use all the same.
            Err(e) if e.kind() == ErrorKind::Corrupt && !found.is_empty() => {
                trouble.push(e.to_string());
                break;
            }
            piece => piece.map_err(failed)?,
        };
        let full = piece.len() >= page.limit;
        found.extend(piece);
        match found.last() {
            Some(last) if full => page = Page::after(last.name.clone()),
            _ => break,
        }
    }
    // Taken by nobody for ever: a record that leasehold did not write. A look at it tells what is wrong.
    let (unreadable, mut found): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|inspection| inspection.holders.is_empty() && inspection.free_in == Some(Duration::MAX));
    for inspection in unreadable.iter().take(UNREADABLE_TOLD_MAX) {
        match client.inspect(&inspection.name).await {
            Ok(mended) if mended.free_in.is_some() => found.push(mended),
            Ok(_) => {}
            Err(e) => trouble.push(e.to_string()),
        }
    }
    if let Some(more @ 1..) = unreadable.len().checked_sub(UNREADABLE_TOLD_MAX) {
        trouble.push(format!("{more} more names cannot be read"));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let shown = match args.output {
        Output::Json => print(&to_json_text(&Value::Array(found.iter().map(inspection_json).collect()))),
        Output::Table => print(&table(&found)),
    }?;
    if trouble.is_empty() {
        return Ok(shown);
    }
    for what in &trouble {
        write_line(&format!("leasehold: {what}"));
    }
    Err(Failure::new(Exit::Internal, "the list is not complete: only what can be read is in it"))
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
    let inspection = client.inspect(name).await.map_err(failed)?;
    let token = match (&args.token, &args.holder) {
        (Some(token), _) => *token,
        (None, holder) => {
            let fingerprint = holder.as_deref().unwrap_or_default();
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
            if inspection.holders.is_empty() {
                return print(&format!(
                    "Nobody held {name:?}, and its time to stay taken was ended; {kept}.\n"
                ));
            }
            print(&format!(
                "Ended the grant of {name:?} with token {token}; {kept}.\n\
                 The old holder is not told before its next renewal, and may work on until then: only a resource \
                 that compares tokens refuses it.\n"
            ))
        }
        Released::AlreadyReleased => print(&format!("Nobody holds {name:?}: nothing to do.\n")),
        Released::NotHeld { by } => {
            let now = match by {
                Some(holder) => describe(&holder),
                None if inspection.holders.is_empty() => held(&inspection),
                None => "somebody else holds it".to_owned(),
            };
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

async fn raise_epoch(client: &LeaseClient) -> Result<Ending, Failure> {
    let epoch = admin(client)?.raise_epoch().await.map_err(failed)?;
    print(&format!(
        "Epoch {epoch}: every later token is larger than all before. Leases that are held keep theirs until they end.\n"
    ))
}

async fn init(client: &LeaseClient) -> Result<Ending, Failure> {
    admin(client)?.prepare().await.map_err(failed)?;
    print(&format!("The {} store is ready.\n", client.profile().name))
}

/// Writes to stdout. A reader that left is no failure.
pub(crate) fn print(text: &str) -> Result<Ending, Failure> {
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
