// A leader waits; it has nothing to process yet, and has promoted nobody.
// error: E0599
use cabrank::Leader;

fn run(leader: Leader<'_>) {
    leader.process();
}

fn main() {}
