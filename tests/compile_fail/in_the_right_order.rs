// The counterpart: the same steps in the right order do compile.
// error: none
use cabrank::{Detected, Follower, Leader, Processing, Turn, Watch};

fn run(leader: Leader<'_>) -> Option<Follower<'_>> {
    let Watch::Detected(detected) = leader.wait() else { return None };
    let detected: Detected<'_> = detected;
    let processing: Processing<'_> = detected.promote().ok()?;
    let follower = processing.process();
    match follower.follow() {
        Turn::Lead(leader) => run(leader),
        Turn::Process(processing) => Some(processing.process()),
        Turn::Leave(_) => None,
    }
}

fn main() {}
