//! A proxy between a client and containerd that can stop forwarding.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

pub(crate) struct Proxy {
    pub(crate) path: PathBuf,
    stalled: watch::Sender<bool>,
    cuts: watch::Sender<u32>,
    counts: Arc<Counts>,
}

/// The numbers of connections, as the client sees them.
#[derive(Default)]
struct Counts {
    accepted: AtomicUsize,
    /// Connections that containerd did not accept.
    refused: AtomicUsize,
}

impl Proxy {
    pub(crate) fn start(dir: &Path, to: PathBuf) -> Self {
        let path = dir.join("p.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let (stalled, seen) = watch::channel(false);
        let (cuts, cut) = watch::channel(0);
        let counts = Arc::new(Counts::default());
        let counted = counts.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (seen, to, mut cut, counted) = (seen.clone(), to.clone(), cut.clone(), counted.clone());
                counted.accepted.fetch_add(1, Ordering::SeqCst);
                cut.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(server) = UnixStream::connect(to).await else {
                        counted.refused.fetch_add(1, Ordering::SeqCst);
                        return;
                    };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::select! {
                        () = pass(from_client, to_server, seen.clone()) => {}
                        () = pass(from_server, to_client, seen) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Proxy { path, stalled, cuts, counts }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// The number of connections.
    pub(crate) fn accepted(&self) -> usize {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    /// The number of connections that containerd did not accept.
    pub(crate) fn refused(&self) -> usize {
        self.counts.refused.load(Ordering::SeqCst)
    }

    /// Stops forwarding, or continues.
    pub(crate) fn stall(&self, stalled: bool) {
        self.stalled.send_replace(stalled);
    }

    /// Breaks all connections.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut stalled: watch::Receiver<bool>) {
    let mut buffer = [0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if stalled.wait_for(|stalled| !stalled).await.is_err()
            || to.write_all(&buffer[..count]).await.is_err()
        {
            return;
        }
    }
}
