// A handler moves between threads.
// error: E0277
use cabrank::{Interest, Next, Pool, handler_fn};
use std::rc::Rc;

fn main() {
    let pool = Pool::builder().build().unwrap();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let not_send = Rc::new(());
    let handler = handler_fn(socket, move |_, _, _| {
        let _ = &not_send;
        Next::Close
    });
    pool.handles().register(handler, Interest::READABLE).unwrap();
}
