// A role cannot outlive its pool.
// error: E0597
use cabrank::{Follower, Pool};

fn main() {
    let follower: Follower<'_>;
    {
        let pool = Pool::builder().build().unwrap();
        follower = pool.enlist().unwrap();
    }
    drop(follower);
}
