// A registered source belongs to the set: nobody can close it or read from it behind the handler's back.
// error: E0382
use cabrank::{Interest, Next, Pool, handler_fn};

fn main() {
    let pool = Pool::builder().build().unwrap();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let handler = handler_fn(socket, |_, _, _| Next::Close);
    pool.handles().register(handler, Interest::READABLE).unwrap();
    drop(socket);
}
