//! Ports that the agent opens.

use crate::variables::variable;
use protocol::gang::LISTEN_ADDRESS;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

/// Opens a free port of the loopback interface.
///
/// # Errors
/// Where the kernel denies it, such as for a port that is taken.
pub fn listen_locally() -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Opens `port` at the address that the pod's environment names, or at all.
///
/// # Errors
/// Where the kernel denies it, such as for a port that is taken.
pub fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = bind(address(LISTEN_ADDRESS), port)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The address that a variable has.
pub fn address(name: &str) -> Option<IpAddr> {
    variable(name)?.parse().ok()
}

/// Opens `port` at this address only, or at all, of both families where there are both.
///
/// # Errors
/// Where the kernel denies it, such as for a port that is taken.
pub fn bind(only: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    match only {
        Some(only) => TcpListener::bind((only, port)),
        None => TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))),
    }
}
