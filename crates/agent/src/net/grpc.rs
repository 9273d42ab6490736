//! A gRPC health check, encoded by hand: one request message, one response message.

use std::time::Duration;

use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, Request, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use outrigger_lifecycle::ProbeCause;

use super::{Reach, Silence};
use crate::tasks::Task;

/// Maximum number of response bytes read.
const ANSWER_MAX: usize = 10 << 10;

/// `grpc.health.v1.HealthCheckResponse.ServingStatus.SERVING`.
const SERVING: u64 = 1;

/// Calls `grpc.health.v1.Health/Check`; the error describes any answer other than "serving".
pub(crate) async fn check(reach: &Reach, port: u16, service: &str, timeout: Duration) -> Result<(), Silence> {
    match tokio::time::timeout(timeout, ask(reach, port, service, timeout)).await {
        Ok(result) => result,
        Err(_) => Err(Silence::new(ProbeCause::TimedOut, format!("no answer within {timeout:?}"))),
    }
}

async fn ask(reach: &Reach, port: u16, service: &str, timeout: Duration) -> Result<(), Silence> {
    let stream = reach.connect(None, port, timeout).await.map_err(|e| Silence::from_io(&e))?;
    let bad = |text: String| Silence::new(ProbeCause::BadAnswer, text);
    let failed = |e: hyper::Error| bad(format!("no gRPC answer: {e}"));
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(failed)?;
    let _connection = Task::spawn(connection);
    let request = Request::post(format!("http://{}:{port}/grpc.health.v1.Health/Check", bracketed(reach)))
        .version(Version::HTTP_2)
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, "kube-probe/1.36")
        .body(Full::new(Bytes::from(encode(service))))
        .map_err(|e| bad(e.to_string()))?;
    let response = sender.send_request(request).await.map_err(failed)?;
    if response.status() != 200 {
        return Err(bad(format!("answered HTTP status {}", response.status().as_u16())));
    }
    let headers = response.headers().clone();
    let body = Limited::new(response.into_body(), ANSWER_MAX)
        .collect()
        .await
        .map_err(|e| bad(format!("no gRPC answer: {e}")))?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    // A response without a message has its status in the headers.
    let status = grpc_status(&trailers).or_else(|| grpc_status(&headers));
    match status {
        Some((0, _)) => {}
        Some((code, message)) => return Err(bad(format!("gRPC status {code}: {message}"))),
        None => return Err(bad("the answer has no gRPC status".into())),
    }
    match decode(&body.to_bytes()) {
        Some(SERVING) => Ok(()),
        Some(2) => Err(bad("not serving".into())),
        Some(3) => Err(bad("service unknown".into())),
        Some(0) => Err(bad("status unknown".into())),
        other => Err(bad(format!("health status {other:?}"))),
    }
}

fn bracketed(reach: &Reach) -> String {
    match reach.ip.is_ipv6() {
        true => format!("[{}]", reach.ip),
        false => reach.ip.to_string(),
    }
}

fn grpc_status(headers: &HeaderMap) -> Option<(u32, String)> {
    let code = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let message = headers.get("grpc-message").and_then(|m| m.to_str().ok());
    Some((code, message.unwrap_or("").to_owned()))
}

/// A length-prefixed `HealthCheckRequest { service }`.
fn encode(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.append(&mut message);
    frame
}

/// The `status` of a length-prefixed `HealthCheckResponse`; other fields are skipped.
fn decode(frame: &[u8]) -> Option<u64> {
    let (prefix, mut rest) = frame.split_at_checked(5)?;
    let length = u32::from_be_bytes(prefix[1..].try_into().ok()?);
    rest = rest.get(..length as usize)?;
    let mut status = 0;
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let value = match key & 7 {
            0 => varint(&mut rest)?,
            1 => skip(&mut rest, 8)?,
            2 => {
                let length = varint(&mut rest)?;
                skip(&mut rest, usize::try_from(length).ok()?)?
            }
            5 => skip(&mut rest, 4)?,
            _ => return None,
        };
        if key == 0x08 {
            status = value;
        }
    }
    Some(status)
}

fn skip(rest: &mut &[u8], bytes: usize) -> Option<u64> {
    *rest = rest.get(bytes..)?;
    Some(0)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_protobuf() {
        assert_eq!(encode(""), [0, 0, 0, 0, 0]);
        assert_eq!(encode("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let table: [(&[u8], Option<u64>); 6] = [
            (&[0, 0, 0, 0, 2, 0x08, 1], Some(1)),
            (&[0, 0, 0, 0, 0], Some(0)),
            (&[0, 0, 0, 0, 5, 0x12, 1, b'x', 0x08, 2], Some(2)),
            (&[0, 0, 0, 0, 9, 0x08, 1], None),
            (&[0, 0, 0], None),
            (&[0, 0, 0, 0, 1, 0x08], None),
        ];
        for (frame, expected) in table {
            assert_eq!(decode(frame), expected, "{frame:?}");
        }
    }
}
