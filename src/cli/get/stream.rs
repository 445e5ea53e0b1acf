//! The update stream, which connects again when the connection breaks or the agent restarts, and the events of watches.

use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use serde_json::Value;
use tokio::time::sleep;

use crate::{
    backoff::Backoff,
    cli::{
        connection::{Connection, JSON, with_query},
        failure::Failure,
        output::text,
        status::Status,
    },
    client::Lines,
    host::Random,
};

/// The delay before the first attempt to connect again; it doubles with each further one.
pub(in crate::cli) const FIRST_DELAY: Duration = Duration::from_millis(500);
/// The longest delay: a user who watches a restart does not wait for long.
pub(in crate::cli) const LONGEST_DELAY: Duration = Duration::from_secs(15);
/// The longest beginning of a line that has its number and its run.
const HEAD: usize = 200;

/// What happens to the connection.
#[derive(Clone, Copy)]
pub(in crate::cli) enum Link<'a> {
    /// It is lost, and made again.
    Lost(&'a Failure),
    /// The stream continues after the last line.
    Continues,
    /// The stream starts again, with all pods.
    StartsAgain,
}

/// The lines of the stream.
pub(in crate::cli) struct UpdateStream<'a> {
    connection: &'a Connection,
    random: &'a Random,
    report: &'a dyn Fn(Link<'_>),
    lines: Lines,
    backoff: Backoff,
    /// The run of the agent that has sent the last line.
    run: Option<String>,
    /// Where the stream continues after the last line, for the query; none to start again.
    from: Option<String>,
}

impl<'a> UpdateStream<'a> {
    /// Begins with this number, or with a SET for each source.
    pub(in crate::cli) async fn open(
        connection: &'a Connection,
        random: &'a Random,
        from: Option<String>,
        report: &'a dyn Fn(Link<'_>),
    ) -> Result<Self, Failure> {
        let lines = request(connection, from.as_deref()).await?;
        Ok(Self {
            connection,
            random,
            report,
            lines,
            backoff: Backoff::new(FIRST_DELAY, LONGEST_DELAY),
            run: None,
            from,
        })
    }

    /// The next line.
    pub(in crate::cli) async fn next(&mut self) -> Result<Bytes, Failure> {
        loop {
            let failure = match self.lines.next().await {
                Some(Ok(line)) if line.starts_with(br#"{"seq":"#) && !line.ends_with(b"]}") => {
                    Failure::Failed(anyhow!("the last line was cut off"))
                }
                Some(Ok(line)) => {
                    self.backoff.reset();
                    self.note(&line);
                    return Ok(line);
                }
                Some(Err(error)) => Failure::failed(error),
                None => Failure::Failed(anyhow!("the agent has ended the stream")),
            };
            if failure.is_lasting() {
                return Err(failure);
            }
            (self.report)(Link::Lost(&failure));
            self.reconnect().await?;
        }
    }

    /// Notes the number of a line, and the run, which is in the first line of a response.
    fn note(&mut self, line: &[u8]) {
        let head = String::from_utf8_lossy(&line[..line.len().min(HEAD)]);
        let Some(rest) = head.strip_prefix(r#"{"seq":"#) else { return };
        let digits = rest.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(rest.len());
        if let Some(run) = rest[digits..].strip_prefix(r#","run":""#).and_then(|rest| rest.split_once('"')) {
            self.run = Some(run.0.to_owned());
        }
        // A number alone may be one of another run.
        let next = rest[..digits].parse().ok().and_then(|seq: u64| seq.checked_add(1));
        self.from = self.run.as_ref().zip(next).map(|(run, next)| format!("{run}-{next}"));
    }

    /// Connects again, with growing delays. An error that stays ends the stream.
    async fn reconnect(&mut self) -> Result<(), Failure> {
        sleep(self.backoff.next(self.random.fraction())).await;
        loop {
            match request(self.connection, self.from.as_deref()).await {
                Ok(lines) => {
                    self.lines = lines;
                    (self.report)(if self.from.is_some() { Link::Continues } else { Link::StartsAgain });
                    return Ok(());
                }
                // It is another run, or the next update is not held any more.
                Err(Failure::Server(status)) if status.code == 410 && self.from.is_some() => {
                    (self.from, self.run) = (None, None);
                }
                Err(failure) if failure.is_lasting() => return Err(failure),
                Err(_) => sleep(self.backoff.next(self.random.fraction())).await,
            }
        }
    }
}

/// Parses a line of the stream.
pub(super) fn parse(line: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(line).map_err(|_| {
        Failure::Failed(anyhow!("the update stream has a line that is not JSON: it was cut off (try again)"))
    })
}

/// The next event of a watch: its type and its object. `version` becomes the one where the watch continues, or
/// none if only a new list helps. Returns none at the end of the watch.
pub(in crate::cli) async fn next_event(
    lines: &mut Lines,
    version: &mut Option<String>,
    backoff: &mut Backoff,
) -> Result<Option<(String, Value)>, Failure> {
    let Some(line) = lines.next().await else { return Ok(None) };
    let mut event = parse(&line.map_err(Failure::failed)?)?;
    backoff.reset();
    let (kind, object) = (text(&event["type"]).to_owned(), event["object"].take());
    if kind == "ERROR" {
        *version = None;
        let status = Status::of(&object, 500);
        return if status.code == 410 { Ok(None) } else { Err(Failure::Server(status)) };
    }
    *version = Some(text(&object["metadata"]["resourceVersion"]).to_owned());
    Ok(Some((kind, object)))
}

async fn request(connection: &Connection, from: Option<&str>) -> Result<Lines, Failure> {
    let query: Vec<(&str, &str)> = from.iter().map(|from| ("from", *from)).collect();
    connection.lines(&with_query("/updates", &query), JSON).await
}
