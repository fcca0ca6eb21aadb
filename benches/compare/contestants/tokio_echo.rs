//! The same echo on tokio's multi-threaded runtime.
//!
//! Per request: one `recv`, one `send`, a share in one `epoll_wait`. After a short read tokio waits for the
//! next event, edge-triggered, and does not read again. A handler that blocks does so on a worker, as in all
//! the others: the regime is about handlers that do not say so.

use std::convert::Infallible;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::listener::Listener;
use crate::connection::{BUFFER, Cost};

pub(crate) fn serve(listener: Listener, workers: usize, cost: Cost) -> io::Result<Infallible> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_io().build()?;
    // On a worker, like everything else.
    let accepting = runtime.spawn(async move {
        match listener {
            Listener::Tcp(listener) => {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                loop {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    tokio::spawn(echo(stream, cost));
                }
            }
            Listener::Unix(listener) => {
                let listener = tokio::net::UnixListener::from_std(listener)?;
                loop {
                    let (stream, _) = listener.accept().await?;
                    tokio::spawn(echo(stream, cost));
                }
            }
        }
    });
    runtime.block_on(accepting).map_err(io::Error::other)?
}

async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin, cost: Cost) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        cost.pay(&buffer[..read]);
        stream.write_all(&buffer[..read]).await?;
    }
}
