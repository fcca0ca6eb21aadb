// Only a leader can give the waiting role away.
// error: E0599
use cabrank::Follower;

fn run(follower: Follower<'_>) {
    let _ = follower.promote();
}

fn main() {}
