//! The world outside of the machine: a server, and a name server.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

/// Its address.
pub(crate) const ADDRESS: &str = "198.51.100.2";
/// The address of every name.
pub(crate) const NAMED: [u8; 4] = [192, 0, 2, 77];

/// Serves until it is killed.
pub(crate) fn serve() -> ! {
    let names = UdpSocket::bind((ADDRESS, 53)).expect("port 53");
    std::thread::spawn(move || answer_names(&names));
    let listener = TcpListener::bind((ADDRESS, 7777)).expect("port 7777");
    loop {
        if let Ok((mut stream, _)) = listener.accept() {
            // The client speaks first, as with real servers: the pasta of Debian 12 repeats data for a client
            // that has already closed its side.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(b"hello from the world\n");
        }
    }
}

/// Every query is answered with the same address; those for IPv6 with none.
fn answer_names(socket: &UdpSocket) {
    let mut buffer = [0; 512];
    while let Ok((length, client)) = socket.recv_from(&mut buffer) {
        let question = &buffer[..length];
        // Header of 12 bytes, a name that ends with a zero, type and class.
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
