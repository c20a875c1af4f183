//! What test programs share.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod cluster;
pub mod init;
pub mod packages;
pub mod pod;
pub mod room;
pub mod wait;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// A path of the checkout.
pub fn root(path: &str) -> String {
    format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// The folder of what is fetched or built once per machine.
pub fn cache() -> PathBuf {
    let home = || std::env::home_dir().expect("a home").join(".cache/trainingjob");
    std::env::var_os("TRAININGJOB_CACHE").map_or_else(home, PathBuf::from)
}

/// A port of this machine that nobody listens on.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Asks a server of this machine; the body if it answers with 200.
pub fn ask(port: u16, method: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // 1.0: the answer comes whole and ends with the connection.
    let head = format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json");
    let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    (head.split(' ').nth(1) == Some("200")).then(|| body.to_owned())
}
