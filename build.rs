//! Declares the cfgs this crate knows and refuses targets it cannot serve. Never probes the build host.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Set from outside to compile the protocol against a model checker (see docs/contributing.md).
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rustc-check-cfg=cfg(shuttle)");
    println!("cargo::rustc-check-cfg=cfg(docsrs)");

    let target = env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if target != "linux" {
        println!(
            "cargo::error=cabrank is built on Linux's epoll and cannot be compiled for the target operating system `{target}`."
        );
    }
}
