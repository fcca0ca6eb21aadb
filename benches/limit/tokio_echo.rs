//! The same echo on tokio's multi-threaded runtime.

use std::io;
use std::net::TcpListener;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::connection::{BUFFER, Cost};

/// Serves for ever.
pub(crate) fn serve(listener: TcpListener, threads: usize, cost: Cost) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_io().build()?;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(echo(stream, cost));
        }
    })
}

async fn echo(mut stream: tokio::net::TcpStream, cost: Cost) -> io::Result<()> {
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
