//! Tests whether pods reach each other: one listens, and another one connects.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

/// Sent by the listening side, so that no proxy between the two is mistaken for it.
const GREETING: &[u8] = b"trainingjob-ports\n";
/// How long one connection may take.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Interval between attempts.
const AGAIN: Duration = Duration::from_millis(500);

/// Greets all connections to these ports, for `time`.
///
/// # Errors
/// If a port can't be listened on.
pub fn listen(ports: &[u16], time: Duration) -> io::Result<()> {
    for port in ports {
        let any = |_| TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, *port));
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port)).or_else(any)?;
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(GREETING);
            }
        });
    }
    thread::sleep(time);
    Ok(())
}

/// Connects to each port of a host, until it answers or the time is over. The error says why a port does not answer.
#[must_use]
pub fn connect(host: &str, ports: &[u16], time: Duration) -> Vec<(u16, Result<(), String>)> {
    let tried = ports.iter().map(|port| {
        let begun = Instant::now();
        loop {
            match greeted(host, *port) {
                Ok(()) => return (*port, Ok(())),
                Err(error) if begun.elapsed() >= time => return (*port, Err(error.to_string())),
                Err(_) => thread::sleep(AGAIN),
            }
        }
    });
    tried.collect()
}

fn greeted(host: &str, port: u16) -> io::Result<()> {
    let address: Option<SocketAddr> = (host, port).to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other("the host has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, ATTEMPT)?;
    stream.set_read_timeout(Some(ATTEMPT))?;
    let mut answer = vec![0; GREETING.len()];
    stream.read_exact(&mut answer)?;
    if answer == GREETING { Ok(()) } else { Err(io::Error::other("something else answers there")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_port_is_distinguished_from_a_closed_one() {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (open, closed) = (free(), free());
        thread::spawn(move || listen(&[open], Duration::from_secs(600)));
        let reached = connect("127.0.0.1", &[open], Duration::from_secs(60));
        assert_eq!(reached, [(open, Ok(()))]);
        let [(_, refused)] = &connect("127.0.0.1", &[closed], Duration::ZERO)[..] else { panic!("one port") };
        assert!(refused.as_ref().unwrap_err().contains("refused"), "{refused:?}");
    }
}
