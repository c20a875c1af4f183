//! Ports that the agent opens.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// Opens a port of the loopback interface that nobody else has.
///
/// # Errors
/// Where the kernel denies it, such as for a port that is taken.
pub fn listen_locally() -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Opens `port` on all addresses, of both families where there are both.
///
/// # Errors
/// Where the kernel denies it, such as for a port that is taken.
pub fn listen(port: u16) -> io::Result<TcpListener> {
    let any = |ip: SocketAddr| TcpListener::bind(ip);
    let listener = any((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|_| any((Ipv4Addr::UNSPECIFIED, port).into()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
