//! Runs an empty real registry that requires a password.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

pub(crate) struct Registry {
    child: Child,
    pub(crate) port: u16,
}

impl Registry {
    /// With `password`, it has one user, whose password the tests do not use.
    pub(crate) fn start(dir: &Path, password: bool) -> Registry {
        let deadline = Instant::now() + Duration::from_secs(30);
        fs::create_dir_all(dir.join("storage")).expect("a directory");
        let users = dir.join("htpasswd");
        fs::write(&users, "test:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n")
            .expect("a file");
        let auth = match password {
            true => format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", users.display()),
            false => String::new(),
        };
        loop {
            let port = free_port();
            let config = format!(
                "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n{auth}",
                dir.join("storage").display()
            );
            fs::write(dir.join("config.yml"), config).expect("a file");
            let log = fs::File::create(dir.join("log")).expect("a file");
            let mut child = Command::new("docker-registry")
                .arg("serve")
                .arg(dir.join("config.yml"))
                .stdout(log.try_clone().expect("a file"))
                .stderr(log)
                .spawn()
                .expect("docker-registry is installed");
            // If it has ended, the port was in use. Try another one.
            while matches!(child.try_wait(), Ok(None)) {
                if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                    return Registry { child, port };
                }
                assert!(Instant::now() < deadline, "the registry does not start");
                std::thread::park_timeout(Duration::from_millis(10));
            }
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}
