// Promoting consumes the role.
// error: E0382
use cabrank::Detected;

fn run(detected: Detected<'_>) {
    let _ = detected.promote();
    let _ = detected.promote();
}

fn main() {}
