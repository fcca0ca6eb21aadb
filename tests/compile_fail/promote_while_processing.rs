// A processing thread has no waiting role to give away.
// error: E0599
use cabrank::Processing;

fn run(processing: Processing<'_>) {
    let _ = processing.promote();
}

fn main() {}
