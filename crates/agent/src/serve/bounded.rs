//! Bounds the number of connections, because the agent's memory is taken from the program's.

use crate::places::who_gives_way;
use axum::serve::Listener;
use parking_lot::Mutex;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Highest number of connections at a time.
const MAX_CONNECTIONS: usize = 32;
/// Lifetime of a connection, idle or not. Clients that keep connections open connect again.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Accepts every connection. If there are too many, it closes the one that has been silent for longest, of the address
/// that holds the most. So a client that holds many connections only loses its own.
pub struct Bounded {
    listener: TcpListener,
    held: Arc<OpenConnections>,
}

impl Bounded {
    /// Bounds the connections of `listener`.
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, held: Arc::default() }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let place = self.held.add(address.ip());
        let gives_way = Box::pin(place.gives_way.clone().cancelled_owned());
        (Connection { stream, end: Box::pin(sleep(MAX_AGE)), gives_way, place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The open connections.
#[derive(Default)]
struct OpenConnections {
    places: Mutex<Vec<Arc<OpenConnection>>>,
    /// Grows with each read and write of any connection.
    clock: AtomicU64,
}

/// One open connection.
struct OpenConnection {
    address: IpAddr,
    last_active: AtomicU64,
    gives_way: CancellationToken,
}

impl OpenConnections {
    fn add(self: &Arc<Self>, address: IpAddr) -> Slot {
        let gives_way = CancellationToken::new();
        let spot = Arc::new(OpenConnection {
            address,
            last_active: AtomicU64::new(self.tick()),
            gives_way: gives_way.clone(),
        });
        let mut places = self.places.lock();
        places.push(Arc::clone(&spot));
        if places.len() > MAX_CONNECTIONS
            && let Some(at) = who_gives_way(places.iter().map(|spot| (spot.address, spot.last_active.load(SeqCst))))
        {
            places.swap_remove(at).gives_way.cancel();
        }
        Slot { held: Arc::clone(self), spot, gives_way }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }
}

/// A connection's place among the open ones. It is freed when the connection ends.
struct Slot {
    held: Arc<OpenConnections>,
    spot: Arc<OpenConnection>,
    gives_way: CancellationToken,
}

impl Slot {
    fn is_active(&self) {
        self.spot.last_active.store(self.held.tick(), SeqCst);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.held.places.lock().retain(|spot| !Arc::ptr_eq(spot, &self.spot));
    }
}

/// A connection that fails when its lifetime is over, or when it has to give way.
pub struct Connection {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    gives_way: Pin<Box<WaitForCancellationFutureOwned>>,
    place: Slot,
}

impl Connection {
    fn check(&mut self, cx: &mut Context) -> io::Result<()> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.gives_way.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    fn noted<T>(&self, polled: Poll<T>) -> Poll<T> {
        if polled.is_ready() {
            self.place.is_active();
        }
        polled
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.noted(polled)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.noted(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[test]
    fn connections_of_the_busiest_peer_are_closed_first() {
        let held = Arc::new(OpenConnections::default());
        let asks = held.add(address(1));
        let mut hoarded: Vec<Slot> = (0..3 * MAX_CONNECTIONS).map(|_| held.add(address(2))).collect();
        assert!(!asks.gives_way.is_cancelled(), "it was there first and has said nothing since");
        let others = [3, 4, 5].map(|n| held.add(address(n)));
        assert!(others.iter().all(|place| !place.gives_way.is_cancelled()));
        assert_eq!(held.places.lock().len(), MAX_CONNECTIONS);
        let left = |hoarded: &[Slot]| hoarded.iter().filter(|place| !place.gives_way.is_cancelled()).count();
        assert_eq!(left(&hoarded), MAX_CONNECTIONS - 4);
        hoarded.clear();
        assert_eq!(held.places.lock().len(), 4, "a place is free with its connection's end");
    }

    #[test]
    fn longest_silent_connection_of_an_address_is_closed() {
        let held = Arc::new(OpenConnections::default());
        let places: Vec<Slot> = (0..MAX_CONNECTIONS).map(|_| held.add(address(1))).collect();
        places[0].is_active();
        let _newest = held.add(address(1));
        let gone: Vec<bool> = places.iter().map(|place| place.gives_way.is_cancelled()).collect();
        assert_eq!(gone.iter().filter(|&&gone| gone).count(), 1);
        assert!(gone[1], "the first has spoken since");
    }
}
