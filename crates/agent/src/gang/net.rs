//! The connections of a gang. The leader's agent listens, and the others dial it for as long as they live.
//!
//! Tasks of the agent's runtime own the sockets. They pass input through one bounded queue to the container's loop, and
//! wake it. Each connection has a queue for outgoing messages. A full queue drops a message, because the next one
//! repeats it.

use crate::agent_log::AgentLog;
use crate::gang::clock::now;
use crate::places::who_gives_way;
use crate::wake::Wake;
use gang::frame::{Channel, Event, FrameError, NONCE, Secret};
use gang::message::{MemberId, Message};
use gang::{Conn, Input};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::AbortHandle;

/// Maximum time between two tries to reach the leader, whose pod may not even have a node.
const DIAL_AGAIN: Duration = Duration::from_secs(1);
/// Time between the first two tries.
const DIAL_SOON: Duration = Duration::from_millis(20);
/// Maximum time of one try.
const DIAL_WITHIN: Duration = Duration::from_secs(3);
/// Maximum time of one try at the leader's last known address.
const DIAL_KNOWN_WITHIN: Duration = Duration::from_secs(1);
/// How long a connection may accept nothing of what is sent.
const SEND_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of unproven connections. Beyond it, the address with the most loses its oldest one.
const STRANGERS: usize = 128;
/// Maximum number of inputs that wait for the loop.
const INPUTS: usize = 1024;
/// Maximum number of messages that wait to be sent on one connection.
const OUTPUTS: usize = 16;
/// Time between two log lines about unproven connections.
const TELL_EVERY: Duration = Duration::from_secs(600);

/// The identity of an agent on its connections.
#[derive(Clone)]
pub struct Identity {
    /// The gang's key.
    pub secret: Secret,
    /// UID of the TrainingJob.
    pub job: String,
    /// The agent's place in the gang.
    pub member: MemberId,
    /// UID of its pod.
    pub pod: String,
}

/// The connections of one agent.
pub struct Net {
    inputs: Receiver<Input>,
    shared: Arc<Shared>,
}

struct Shared {
    identity: Identity,
    inputs: Sender<Input>,
    wake: Arc<Wake>,
    log: Arc<AgentLog>,
    last: AtomicU64,
    outputs: Mutex<HashMap<Conn, Sender<Message>>>,
    /// Number of proven connections that are open.
    open: AtomicU64,
    /// Address at which a follower last reached the proven leader.
    leader: Mutex<Option<IpAddr>>,
    /// No new connections are wanted.
    is_over: AtomicBool,
    /// When the agent last logged a stranger's connection.
    last_logged: Mutex<Option<Instant>>,
}

impl Net {
    /// Listens for the other members.
    ///
    /// # Errors
    /// If the runtime can't wait for the listener.
    pub fn lead(runtime: &Handle, listener: std::net::TcpListener, shared: NetSetup) -> io::Result<Self> {
        let _entered = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        let net = Self::new(shared);
        runtime.spawn(accept(listener, Arc::clone(&net.shared)));
        Ok(net)
    }

    /// Dials the leader at `host:port` repeatedly.
    pub fn follow(runtime: &Handle, host: String, port: u16, shared: NetSetup) -> Self {
        let net = Self::new(shared);
        runtime.spawn(dial(host, port, Arc::clone(&net.shared)));
        net
    }

    fn new(NetSetup { identity, wake, log }: NetSetup) -> Self {
        let (sender, inputs) = channel(INPUTS);
        let shared = Shared {
            identity,
            inputs: sender,
            wake,
            log,
            last: AtomicU64::new(0),
            outputs: Mutex::default(),
            open: AtomicU64::new(0),
            leader: Mutex::default(),
            is_over: AtomicBool::new(false),
            last_logged: Mutex::default(),
        };
        Self { inputs, shared: Arc::new(shared) }
    }

    /// The leader's address, for a follower that has reached it.
    pub fn leader(&self) -> Option<IpAddr> {
        *self.shared.leader.lock()
    }

    /// The next input, if there is one.
    pub fn next(&mut self) -> Option<Input> {
        self.inputs.try_recv().ok()
    }

    /// Sends a message, unless the connection is gone or its queue is full.
    pub fn send(&self, conn: Conn, message: Message) {
        if let Some(output) = self.shared.outputs.lock().get(&conn) {
            let _ = output.try_send(message);
        }
    }

    /// Closes a connection once its queued messages are sent.
    pub fn close(&self, conn: Conn) {
        self.shared.outputs.lock().remove(&conn);
    }

    /// Closes all connections once their queued messages are sent, and opens no new ones.
    pub fn close_all(&self) {
        self.shared.is_over.store(true, Relaxed);
        self.shared.outputs.lock().clear();
    }

    /// Whether no connection is left.
    pub fn has_closed_all(&self) -> bool {
        self.shared.open.load(Relaxed) == 0
    }
}

/// What the connections need from their agent.
pub struct NetSetup {
    /// The agent's identity.
    pub identity: Identity,
    /// Wakes the agent's loop.
    pub wake: Arc<Wake>,
    /// The agent's log.
    pub log: Arc<AgentLog>,
}

/// A connection that has proven nothing yet.
struct UnprovenConnection {
    address: IpAddr,
    task: AbortHandle,
    is_proven: Arc<AtomicBool>,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut strangers: Vec<UnprovenConnection> = Vec::new();
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Usually no file descriptor is left here. Some connections end meanwhile.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        strangers.retain(|stranger| !stranger.task.is_finished() && !stranger.is_proven.load(Relaxed));
        let (is_proven, shared) = (Arc::new(AtomicBool::new(false)), Arc::clone(&shared));
        let proven = Arc::clone(&is_proven);
        let task = tokio::spawn(async move {
            let (id, nonce) = (shared.identity.clone(), rand::random::<[u8; NONCE]>());
            let channel = Channel::accept(id.secret, id.job, nonce, now());
            let end = Connection::new(stream, channel, &shared, proven).run(Vec::new()).await;
            if let Err(error) = end {
                shared.log_refused(&from.ip().to_canonical().to_string(), &error);
            }
        });
        strangers.push(UnprovenConnection { address: from.ip(), task: task.abort_handle(), is_proven });
        let oldest_first = strangers.iter().enumerate().map(|(number, stranger)| (stranger.address, number));
        if strangers.len() > STRANGERS
            && let Some(at) = who_gives_way(oldest_first)
        {
            strangers.remove(at).task.abort();
        }
    }
}

/// Connects to the leader's last known address, or else by its name.
async fn connect(host: &str, port: u16, known: Option<IpAddr>) -> Option<TcpStream> {
    if let Some(address) = known
        && let Ok(Ok(stream)) = tokio::time::timeout(DIAL_KNOWN_WITHIN, TcpStream::connect((address, port))).await
    {
        return Some(stream);
    }
    tokio::time::timeout(DIAL_WITHIN, TcpStream::connect((host, port))).await.ok()?.ok()
}

async fn dial(host: String, port: u16, shared: Arc<Shared>) {
    let mut wait = DIAL_SOON;
    // The leader's address before the connection was lost. Looking up its name may take seconds, which is too long for
    // a reconnection.
    let mut known = None;
    while !shared.is_over.load(Relaxed) {
        if let Some(stream) = connect(&host, port, known.take()).await {
            let (id, nonce) = (shared.identity.clone(), rand::random::<[u8; NONCE]>());
            if let Ok((channel, first)) = Channel::dial(id.secret, id.job, nonce, &id.member, &id.pod, now()) {
                let is_proven = Arc::new(AtomicBool::new(false));
                let _ = Connection::new(stream, channel, &shared, Arc::clone(&is_proven)).run(first).await;
                if is_proven.load(Relaxed) {
                    wait = DIAL_SOON;
                    known = *shared.leader.lock();
                }
            }
        }
        // Randomised, so that a thousand members do not all dial a returning leader at once.
        tokio::time::sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
        wait = (wait * 2).min(DIAL_AGAIN);
    }
}

impl Shared {
    async fn send_input(&self, input: Input) {
        let _ = self.inputs.send(input).await;
        self.wake.wake();
    }

    /// Logs rarely, so that a port scanner does not fill the log.
    fn log_refused(&self, from: &str, error: &FrameError) {
        let mut reported = self.last_logged.lock();
        if reported.is_none_or(|reported| reported.elapsed() >= TELL_EVERY) {
            *reported = Some(Instant::now());
            self.log.say(format_args!("closed a connection to the gang's port from {from}: {error}"));
        }
    }
}

/// One connection, while it lasts.
struct Connection<'a> {
    stream: TcpStream,
    channel: Channel,
    shared: &'a Shared,
    is_proven: Arc<AtomicBool>,
    conn: Conn,
}

impl<'a> Connection<'a> {
    fn new(stream: TcpStream, channel: Channel, shared: &'a Shared, is_proven: Arc<AtomicBool>) -> Self {
        // Never 0, which the gang uses for itself.
        let conn = Conn(shared.last.fetch_add(1, Relaxed) + 1);
        Self { stream, channel, shared, is_proven, conn }
    }

    /// Runs until one side ends the connection. The error is the other side's fault.
    async fn run(mut self, first: Vec<u8>) -> Result<(), FrameError> {
        let (sender, mut output) = channel(OUTPUTS);
        let mut sender = Some(sender);
        // Messages are small, and must not wait for more data.
        let _ = self.stream.set_nodelay(true);
        let result = self.converse(first, &mut sender, &mut output).await;
        if self.is_proven.load(Relaxed) {
            self.shared.outputs.lock().remove(&self.conn);
            self.shared.open.fetch_sub(1, Relaxed);
            self.shared.send_input(Input::Closed(self.conn)).await;
        }
        result
    }

    async fn converse(
        &mut self,
        first: Vec<u8>,
        sender: &mut Option<Sender<Message>>,
        output: &mut Receiver<Message>,
    ) -> Result<(), FrameError> {
        let mut buffer = vec![0; 16 * 1024];
        if !self.write(&first).await {
            return Ok(());
        }
        loop {
            let deadline = self.channel.deadline().map(|at| at.since(now()));
            let mut answer = Vec::new();
            tokio::select! {
                read = self.stream.read(&mut buffer) => {
                    let Some(count) = read.ok().filter(|count| *count > 0) else { return Ok(()) };
                    for event in self.channel.receive(&buffer[..count], now(), &mut answer)? {
                        // The proof is sent before anything that depends on it.
                        if !self.write(&std::mem::take(&mut answer)).await {
                            return Ok(());
                        }
                        self.take(event, sender).await;
                    }
                }
                message = output.recv() => {
                    let Some(message) = message else { return Ok(()) };
                    answer = self.channel.send(&message)?;
                }
                () = tokio::time::sleep(deadline.unwrap_or(Duration::MAX)), if deadline.is_some() => return Ok(()),
            }
            if !self.write(&answer).await {
                return Ok(());
            }
        }
    }

    async fn take(&mut self, event: Event, sender: &mut Option<Sender<Message>>) {
        let conn = self.conn;
        let input = match event {
            Event::Message(message) => Input::Received(conn, message),
            Event::Proven(who) => {
                if let Some(sender) = sender.take() {
                    self.shared.outputs.lock().insert(conn, sender);
                }
                self.is_proven.store(true, Relaxed);
                self.shared.open.fetch_add(1, Relaxed);
                if who.is_none() {
                    *self.shared.leader.lock() = self.stream.peer_addr().ok().map(|addr| addr.ip().to_canonical());
                }
                who.map_or(Input::Dialed(conn), |(member, pod)| Input::Accepted { conn, member, pod })
            }
        };
        self.shared.send_input(input).await;
    }

    /// Whether the other side has taken the bytes.
    async fn write(&mut self, bytes: &[u8]) -> bool {
        bytes.is_empty()
            || tokio::time::timeout(SEND_WITHIN, self.stream.write_all(bytes)).await.is_ok_and(|sent| sent.is_ok())
    }
}
