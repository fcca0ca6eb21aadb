// A leader that has detected something must promote before it may process.
// error: E0599
use cabrank::Detected;

fn run(detected: Detected<'_>) {
    detected.process();
}

fn main() {}
