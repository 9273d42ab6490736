//! Simulates the world outside the machine: a server and a name server.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

/// The address of the server.
pub(crate) const ADDRESS: &str = "198.51.100.2";
/// The address that the name server returns for every name.
pub(crate) const NAMED: [u8; 4] = [192, 0, 2, 77];

/// Serves until it is killed.
pub(crate) fn serve() -> ! {
    let names = UdpSocket::bind((ADDRESS, 53)).expect("port 53");
    std::thread::spawn(move || answer_names(&names));
    let listener = TcpListener::bind((ADDRESS, 7777)).expect("port 7777");
    loop {
        if let Ok((mut stream, _)) = listener.accept() {
            // The client sends first, as with real servers. The pasta of Debian 12 repeats data for a client
            // that has already closed its side.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"hello from the world\n");
        }
    }
}

/// Answers every query with the same address. Queries for IPv6 get an answer without an address.
fn answer_names(socket: &UdpSocket) {
    let mut buffer = [0; 512];
    while let Ok((length, client)) = socket.recv_from(&mut buffer) {
        let question = &buffer[..length];
        // A question has a header of 12 bytes, a name that ends with a zero, a type and a class.
        let Some(end) = question.iter().skip(12).position(|byte| *byte == 0).map(|at| 12 + at + 5) else {
            continue;
        };
        let Some(name) = question.get(12..end) else { continue };
        let is_v4 = name[name.len() - 4..name.len() - 2] == [0, 1];
        let mut reply = question[..2].to_vec();
        reply.extend([0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
        reply.extend(name);
        if is_v4 {
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            reply.extend(NAMED);
        }
        let _ = socket.send_to(&reply, client);
    }
}
