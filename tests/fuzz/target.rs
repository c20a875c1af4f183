//! One of the parsers, by the variable TARGET. Its seeds are written to the folder SEEDS.

#![no_main]

#[cfg(fuzzing)]
use fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

#[cfg(fuzzing)]
static CHOSEN: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("TARGET").unwrap_or_default();
    let names = TARGETS.each_ref().map(|target| target.name);
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("TARGET is {name:?}; there are {names:?}"));
    if let Some(folder) = std::env::var_os("SEEDS") {
        for (at, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(std::path::Path::new(&folder).join(format!("seed-{at}")), seed).expect("SEEDS is a folder");
        }
    }
    target
});

#[cfg(fuzzing)]
fuzz_target!(init: { LazyLock::force(&CHOSEN); }, |bytes: &[u8]| (CHOSEN.read)(bytes));
