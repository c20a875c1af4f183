//! Ports for the programs that tests start.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::net::TcpListener;

/// Below the ports that the kernel gives to outgoing connections (from 32768 on), so that none of those takes one
/// between its choice and its use. Also beside the ports that devcluster and the operator use.
const FIRST: u16 = 20_000;
const LAST: u16 = 29_999;

/// A free port of this machine, which no other test of any program gets soon.
pub fn free_port() -> u16 {
    free_ports(1)
}

/// The first of this many consecutive ports, each as [`free_port`] gives one.
///
/// All test programs of this machine take their numbers in turn from one file.
pub fn free_ports(count: u16) -> u16 {
    let path = std::env::temp_dir().join("trainingjob-test-ports");
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).expect("a file of ports");
    file.lock().expect("the file of ports can be locked");
    let mut next = (0..=LAST - FIRST).map(|_| take(&mut file, count));
    let next = next.find(|first| (*first..*first + count).all(is_free));
    next.unwrap_or_else(|| panic!("no {count} ports of {FIRST} to {LAST} are free"))
}

/// The numbers after the one that was taken last.
fn take(file: &mut File, count: u16) -> u16 {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("the file of ports can be read");
    let last: u16 = text.trim().parse().unwrap_or(LAST);
    let first = if (FIRST..=LAST - count).contains(&last) { last + 1 } else { FIRST };
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| write!(file, "{}", first + count - 1))
        .expect("the file of ports can be written");
    first
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok() && TcpListener::bind(("::", port)).is_ok()
}
