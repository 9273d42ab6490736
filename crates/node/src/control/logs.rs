//! Serves container logs: all of them, the last lines, or continuously.

use std::io;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_agent::log::{LogReader, Watcher, lost_text};
use outrigger_text::log_line::parse_line;

use super::registry::{PodRegistry, Visit};
use super::server::Client;
use super::wire::{Answer, Frame, LogsRequest};

/// How long to wait for the last output. Some runtimes report the end of a container before they have written
/// it.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Sends logs until there is nothing more to send.
pub(super) async fn send(
    registry: &PodRegistry,
    request: LogsRequest,
    client: &mut Client,
) -> io::Result<()> {
    let Some(visit) = registry.visit(request.pod) else {
        let text = "the pod has ended and its logs are gone; see the output of the run itself";
        return client.answer(&Answer::Refused(text.to_owned())).await;
    };
    // The subscription comes first, so that later changes wake the loop below.
    let mut changes = registry.changes();
    let (watcher, since) = (Watcher::new()?, request.since_ms.and_then(timestamp));
    let mut sources: Vec<Source> = Vec::new();
    for container in request.containers.iter().copied().filter(|c| *c < visit.logs.pod().containers().len()) {
        let mut source = Source { container, since, reader: None };
        let known = visit.attempts(container);
        let wanted = match (known.as_slice(), request.previous) {
            ([.., last], false) => Some(*last),
            ([.., previous, _], true) => Some(*previous),
            _ => None,
        };
        match wanted {
            Some(attempt) => source.open(&visit, attempt, request.tail).await,
            None if request.follow => {
                client.answer(&Answer::Note(visit.not_started(container))).await?;
            }
            None if request.containers.len() > 1 => {}
            None => {
                let text = match request.previous {
                    true => format!("container {:?} has no previous instance", visit.name(container)),
                    false => visit.not_started(container),
                };
                return client.answer(&Answer::Refused(text)).await;
            }
        }
        sources.push(source);
    }
    let mut last_words = false;
    loop {
        for source in sources.iter().filter(|_| request.follow) {
            // A directory that does not exist yet is watched after the next change.
            let _ = watcher.watch(&visit.logs.dir(source.container));
        }
        // This is checked before reading, so that everything written until then is read.
        let ended = sources.iter().all(|source| visit.is_final(source.container));
        for source in &mut sources {
            source.send_all(&visit, request.follow, client).await?;
        }
        match (request.follow, ended, last_words) {
            (false, ..) | (true, true, true) => break,
            (true, true, false) => {
                last_words = true;
                tokio::time::sleep(LAST_WORDS).await;
                continue;
            }
            (true, false, _) => last_words = false,
        }
        tokio::select! {
            grown = watcher.grown() => drop(grown?),
            _ = changes.changed() => {}
            // The client sends nothing more, so this is a disconnect.
            _ = client.frames.next() => return Ok(()),
        }
    }
    client.answer(&Answer::Done).await
}

fn timestamp(ms: i64) -> Option<Timestamp> {
    Timestamp::from_millisecond(ms).ok()
}

/// The log of one container being sent.
struct Source {
    container: usize,
    /// Only lines written after this time.
    since: Option<Timestamp>,
    reader: Option<Reader>,
}

/// The log of one instance and the read position.
struct Reader {
    attempt: u32,
    log: LogReader,
}

impl Source {
    /// Opens an instance's log at its last lines or its start.
    async fn open(&mut self, visit: &Visit, attempt: u32, lines: Option<usize>) {
        let Some(mut log) = visit.logs.log(self.container, attempt) else { return };
        if let Some(lines) = lines {
            let skipping = tokio::task::spawn_blocking(move || {
                // If the last lines cannot be found, the whole log is shown.
                let _ = log.skip_to_last(lines);
                log
            });
            let Ok(skipped) = skipping.await else { return };
            log = skipped;
        }
        self.reader = Some(Reader { attempt, log });
    }

    /// Sends what is available, including later instances if requested.
    async fn send_all(&mut self, visit: &Visit, next: bool, client: &mut Client) -> io::Result<()> {
        loop {
            // This is checked before reading: a log is complete once the next one exists.
            let attempts = if next { visit.attempts(self.container) } else { Vec::new() };
            let current = self.reader.as_ref().map(|reader| reader.attempt);
            let newer = attempts.into_iter().find(|n| current.is_none_or(|current| *n > current));
            if let Some(reader) = &mut self.reader {
                loop {
                    let sealed = visit.logs.sealed_log(self.container, reader.attempt);
                    let Some(lines) = reader.log.read(sealed.as_deref())? else { break };
                    let lost = reader.log.take_lost();
                    if lost > 0 {
                        client.answer(&Answer::Note(lost_text(visit.name(self.container), lost))).await?;
                    }
                    let lines = since(lines, &mut self.since);
                    if !lines.is_empty() {
                        client.send(&Frame::log(self.container, &lines)).await?;
                    }
                    // Other tasks must run while a long log is read.
                    tokio::task::yield_now().await;
                }
            }
            let Some(newer) = newer else { return Ok(()) };
            self.open(visit, newer, None).await;
        }
    }
}

/// Drops lines from before a time. After the first later line, all lines are kept.
fn since(lines: Vec<u8>, since: &mut Option<Timestamp>) -> Vec<u8> {
    let Some(earliest) = *since else { return lines };
    let mut begin = 0;
    for line in lines.split_inclusive(|b| *b == b'\n') {
        let time = parse_line(line).and_then(|line| line.time.parse::<Timestamp>().ok());
        if time.is_some_and(|time| time >= earliest) {
            *since = None;
            return lines[begin..].to_vec();
        }
        begin += line.len();
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_from_before_are_left_out() {
        let text = b"2024-01-01T00:00:01Z stdout F a\n2024-01-01T01:00:02+01:00 stdout F b\n\
            2024-01-01T00:00:01Z stdout F c\n";
        let mut earliest = Some("2024-01-01T00:00:02Z".parse().unwrap());
        let kept = since(text.to_vec(), &mut earliest);
        assert!(String::from_utf8(kept).unwrap().starts_with("2024-01-01T01:00:02+01:00 stdout F b\n"));
        assert_eq!(earliest, None, "whatever comes now is late enough");
    }
}
