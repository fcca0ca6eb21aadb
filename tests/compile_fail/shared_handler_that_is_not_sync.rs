// A shared handler is called by several threads at once.
// error: E0277
use cabrank::{Interest, Next, Pool, shared_fn};
use std::cell::Cell;

fn main() {
    let pool = Pool::builder().build().unwrap();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let not_sync = Cell::new(0);
    let handler = shared_fn(socket, move |_, _, _| {
        not_sync.set(1);
        Next::Close
    });
    pool.handles().register_shared(handler, Interest::READABLE).unwrap();
}
