//! The netlink wire format, as far as a pod's network needs it.
//!
//! Routing (`link.rs`) and the packet filter (`nat.rs`) use the same format, with about a dozen kinds of
//! messages. It is written by hand because there is no usable crate for the packet filter. With the format at
//! hand, the routing part is smaller than the code to use a crate for it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};

pub(super) const REQUEST: u16 = 0x1;
pub(super) const ACK: u16 = 0x4;
pub(super) const EXCL: u16 = 0x200;
pub(super) const DUMP: u16 = 0x300;
pub(super) const CREATE: u16 = 0x400;
pub(super) const APPEND: u16 = 0x800;

const ERROR: u16 = 2;
const DONE: u16 = 3;
const NESTED: u16 = 0x8000;
const KIND_MASK: u16 = 0x3fff;
const HEADER_BYTES: usize = 16;

/// The kernel answers at once. A missing answer is an error that must not delay a pod.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel packs dumps into at most 32 KiB.
const BUFFER_BYTES: usize = 64 * 1024;

/// One message under construction.
pub(super) struct Message(Vec<u8>);

impl Message {
    /// A message of the given kind. `fixed` is the header that messages of this kind have before their
    /// attributes.
    pub(super) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Message {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        let mut message = Message(bytes);
        message.raw(fixed);
        message
    }

    /// Adds bytes without an attribute header, with padding.
    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut Message {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Message {
        let len = u16::try_from(value.len() + 4).expect("attributes are short");
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.raw(value)
    }

    /// Adds a number in the machine's byte order (routing).
    pub(super) fn u32(&mut self, kind: u16, value: u32) -> &mut Message {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds a number in network byte order (packet filter).
    pub(super) fn be32(&mut self, kind: u16, value: u32) -> &mut Message {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds a string with its terminating zero byte.
    pub(super) fn text(&mut self, kind: u16, value: &str) -> &mut Message {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) -> &mut Message {
        let start = self.0.len();
        self.bytes(kind | NESTED, &[]);
        fill(self);
        let len = u16::try_from(self.0.len() - start).expect("nested attributes are short");
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self
    }

    fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).expect("messages are short");
        self.0[0..4].copy_from_slice(&len.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }

    fn wants_answer(&self) -> bool {
        u16::from_ne_bytes([self.0[6], self.0[7]]) & ACK != 0
    }
}

/// A netlink socket. It stays in the network namespace in which it was opened.
pub(super) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace. Without a protocol (number 0), it is for
    /// routing.
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Netlink> {
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        Ok(Netlink { fd, sequence: 0 })
    }

    /// Sends one message and waits until the kernel has carried it out.
    pub(super) fn request(&mut self, message: Message) -> io::Result<()> {
        self.batch(vec![message])
    }

    /// Sends several messages at once. All messages that request an answer must succeed.
    pub(super) fn batch(&mut self, messages: Vec<Message>) -> io::Result<()> {
        let mut waiting = messages.iter().filter(|m| m.wants_answer()).count();
        let first = self.sequence + 1;
        let mut bytes = Vec::new();
        for message in messages {
            self.sequence += 1;
            bytes.extend(message.finish(self.sequence));
        }
        self.send(&bytes)?;
        while waiting > 0 {
            for answer in split(&self.receive()?) {
                if answer.sequence >= first && answer.kind == ERROR {
                    error_of(&answer)?;
                    waiting = waiting.saturating_sub(1);
                }
            }
        }
        Ok(())
    }

    /// Sends a query (with an acknowledgement, or a dump) and collects the payloads of all answers of the
    /// given kind.
    pub(super) fn ask(&mut self, message: Message, kind: u16) -> io::Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let sequence = self.sequence;
        self.send(&message.finish(sequence))?;
        let mut found = Vec::new();
        loop {
            for answer in split(&self.receive()?).filter(|a| a.sequence == sequence) {
                match answer.kind {
                    DONE => return Ok(found),
                    ERROR => {
                        error_of(&answer)?;
                        return Ok(found);
                    }
                    got if got == kind => found.push(answer.payload.to_vec()),
                    _ => {}
                }
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        sendto(&self.fd, bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match recv(&self.fd, &mut buffer[..], RecvFlags::empty()) {
                Ok((len, _)) => {
                    buffer.truncate(len);
                    return Ok(buffer);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("the kernel did not answer a netlink request within {ANSWER_TIMEOUT:?}"),
                    ));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Parses any bytes as an answer.
pub(super) fn fuzz(bytes: &[u8], mut payload: impl FnMut(&[u8])) {
    let mut end = 0;
    for answer in split(bytes) {
        end += HEADER_BYTES + answer.payload.len();
        assert!(end <= bytes.len(), "more was found than there is");
        let _ = error_of(&answer);
        payload(answer.payload);
        for (_, value) in attributes(answer.payload) {
            drop((read_text(value), attributes(value).count()));
        }
    }
}

struct Answer<'a> {
    kind: u16,
    sequence: u32,
    payload: &'a [u8],
}

fn split(mut bytes: &[u8]) -> impl Iterator<Item = Answer<'_>> {
    std::iter::from_fn(move || {
        let len = read_u32(bytes, 0)? as usize;
        if len < HEADER_BYTES || len > bytes.len() {
            return None;
        }
        let answer = Answer {
            kind: read_u16(bytes, 4)?,
            sequence: read_u32(bytes, 8)?,
            payload: &bytes[HEADER_BYTES..len],
        };
        bytes = &bytes[len.next_multiple_of(4).min(bytes.len())..];
        Some(answer)
    })
}

/// The error in an answer. An answer of kind `ERROR` with number 0 is an acknowledgement.
fn error_of(answer: &Answer<'_>) -> io::Result<()> {
    match read_u32(answer.payload, 0).map(u32::cast_signed) {
        Some(0) => Ok(()),
        Some(number) => Err(io::Error::from_raw_os_error(number.saturating_neg())),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "cut netlink answer")),
    }
}

/// The attributes of a message or of a nested attribute, as (kind, value).
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(read_u16(bytes, 0)?);
        let kind = read_u16(bytes, 2)? & KIND_MASK;
        if len < 4 || len > bytes.len() {
            return None;
        }
        let value = &bytes[4..len];
        bytes = &bytes[len.next_multiple_of(4).min(bytes.len())..];
        Some((kind, value))
    })
}

pub(super) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A string attribute without its terminating zero byte.
pub(super) fn read_text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let mut message = Message::new(7, REQUEST | ACK, &[1, 2, 3]);
        message.text(5, "eth0").nested(6, |m| {
            m.u32(1, 42);
        });
        assert!(message.wants_answer());
        let bytes = message.finish(9);
        let answer = split(&bytes).next().expect("one message");
        assert_eq!((answer.kind, answer.sequence), (7, 9));
        assert_eq!(answer.payload[..4], [1, 2, 3, 0], "the fixed part is padded");
        let found: Vec<_> = attributes(&answer.payload[4..]).collect();
        assert_eq!(found[0].0, 5);
        assert_eq!(read_text(found[0].1), "eth0");
        let inner: Vec<_> = attributes(found[1].1).collect();
        assert_eq!((inner[0].0, read_u32(inner[0].1, 0)), (1, Some(42)));
    }

    #[test]
    fn cut_input_ends_instead_of_panicking() {
        for bytes in [&[][..], &[1], &[200, 0, 1, 0], &[0; 3], &[2, 0, 0, 0], &[255; 17]] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
            assert_eq!(split(bytes).count(), 0, "{bytes:?}");
        }
    }
}
