//! The connections of a gang: the leader's agent listens, the others dial it for as long as they live.
//!
//! Tasks of the agent's runtime own the sockets. What they bring goes through one bounded queue to the loop of the container,
//! which is woken; what is to be sent goes through a queue for each connection, and is dropped where that is full, for
//! the next message says it again.

use crate::gang::clock::now;
use crate::places::who_gives_way;
use crate::wake::Wake;
use crate::words::Words;
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

/// Between two tries to reach the leader, at most: its pod may not even have a node.
const DIAL_AGAIN: Duration = Duration::from_secs(1);
/// Between the first two.
const DIAL_SOON: Duration = Duration::from_millis(20);
/// How long a try may take.
const DIAL_WITHIN: Duration = Duration::from_secs(3);
/// The same at the address where the leader was last.
const DIAL_KNOWN_WITHIN: Duration = Duration::from_secs(1);
/// How long a connection may take nothing of what is sent.
const SEND_WITHIN: Duration = Duration::from_secs(10);
/// Connections of which nobody has proven anything yet. Of more the oldest goes of the address that has the most.
const STRANGERS: usize = 128;
/// Inputs that wait for the loop.
const INPUTS: usize = 1024;
/// Messages that wait to be sent on one connection.
const OUTPUTS: usize = 16;
/// Between two words on connections that prove nothing.
const TELL_EVERY: Duration = Duration::from_secs(600);

/// Who an agent is among those who connect.
#[derive(Clone)]
pub struct Identity {
    /// The gang's key.
    pub secret: Secret,
    /// UID of the TrainingJob.
    pub job: String,
    /// Its place.
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
    words: Arc<Words>,
    last: AtomicU64,
    outputs: Mutex<HashMap<Conn, Sender<Message>>>,
    /// Connections that are proven and not over.
    open: AtomicU64,
    /// Where the leader was when it last was proven to be it, for a follower.
    leader: Mutex<Option<IpAddr>>,
    /// No new connection is wanted.
    is_over: AtomicBool,
    /// When a connection of a stranger was last told of.
    told: Mutex<Option<Instant>>,
}

impl Net {
    /// Listens for the others.
    ///
    /// # Errors
    /// If the listener can't be waited for.
    pub fn lead(runtime: &Handle, listener: std::net::TcpListener, shared: NetSetup) -> io::Result<Self> {
        let _entered = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        let net = Self::new(shared);
        runtime.spawn(accept(listener, Arc::clone(&net.shared)));
        Ok(net)
    }

    /// Dials the leader at `host:port`, again and again.
    pub fn follow(runtime: &Handle, host: String, port: u16, shared: NetSetup) -> Self {
        let net = Self::new(shared);
        runtime.spawn(dial(host, port, Arc::clone(&net.shared)));
        net
    }

    fn new(NetSetup { identity, wake, words }: NetSetup) -> Self {
        let (sender, inputs) = channel(INPUTS);
        let shared = Shared {
            identity,
            inputs: sender,
            wake,
            words,
            last: AtomicU64::new(0),
            outputs: Mutex::default(),
            open: AtomicU64::new(0),
            leader: Mutex::default(),
            is_over: AtomicBool::new(false),
            told: Mutex::default(),
        };
        Self { inputs, shared: Arc::new(shared) }
    }

    /// The leader's address, for a follower that has reached it.
    pub fn leader(&self) -> Option<IpAddr> {
        *self.shared.leader.lock()
    }

    /// What has come, if anything has.
    pub fn next(&mut self) -> Option<Input> {
        self.inputs.try_recv().ok()
    }

    /// Sends a message, unless the connection is gone or takes nothing.
    pub fn send(&self, conn: Conn, message: Message) {
        if let Some(output) = self.shared.outputs.lock().get(&conn) {
            let _ = output.try_send(message);
        }
    }

    /// Ends a connection once what waits has been sent.
    pub fn close(&self, conn: Conn) {
        self.shared.outputs.lock().remove(&conn);
    }

    /// Ends all connections once what waits has been sent, and makes no more.
    pub fn close_all(&self) {
        self.shared.is_over.store(true, Relaxed);
        self.shared.outputs.lock().clear();
    }

    /// Whether no connection is left.
    pub fn has_closed_all(&self) -> bool {
        self.shared.open.load(Relaxed) == 0
    }
}

/// What connections need of their agent.
pub struct NetSetup {
    /// Who it is.
    pub identity: Identity,
    /// Wakes its loop.
    pub wake: Arc<Wake>,
    /// Its own words.
    pub words: Arc<Words>,
}

/// A connection that has proven nothing yet.
struct Stranger {
    address: IpAddr,
    task: AbortHandle,
    is_proven: Arc<AtomicBool>,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut strangers: Vec<Stranger> = Vec::new();
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Out of file descriptors, mostly; some end meanwhile.
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
                shared.tell_of_stranger(&from.ip().to_canonical().to_string(), &error);
            }
        });
        strangers.push(Stranger { address: from.ip(), task: task.abort_handle(), is_proven });
        let oldest_first = strangers.iter().enumerate().map(|(number, stranger)| (stranger.address, number));
        if strangers.len() > STRANGERS
            && let Some(at) = who_gives_way(oldest_first)
        {
            strangers.remove(at).task.abort();
        }
    }
}

/// Connects to where the leader is known to have been, else by its name.
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
    // Where the leader was before the connection was lost. Its name may take seconds to be looked up, which is too long for
    // one that only has to be made again.
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
        // Not all at once, when a leader comes back to its thousand members.
        tokio::time::sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
        wait = (wait * 2).min(DIAL_AGAIN);
    }
}

impl Shared {
    async fn tell(&self, input: Input) {
        let _ = self.inputs.send(input).await;
        self.wake.wake();
    }

    /// A port scanner does not fill the log.
    fn tell_of_stranger(&self, from: &str, error: &FrameError) {
        let mut told = self.told.lock();
        if told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            *told = Some(Instant::now());
            self.words.say(format_args!("closed a connection to the gang's port from {from}: {error}"));
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
        // Never 0, which is the gang's own.
        let conn = Conn(shared.last.fetch_add(1, Relaxed) + 1);
        Self { stream, channel, shared, is_proven, conn }
    }

    /// Until one side ends it. The error is what the other side has done wrong.
    async fn run(mut self, first: Vec<u8>) -> Result<(), FrameError> {
        let (sender, mut output) = channel(OUTPUTS);
        let mut sender = Some(sender);
        // What is sent is small, and nothing waits for more of it.
        let _ = self.stream.set_nodelay(true);
        let result = self.converse(first, &mut sender, &mut output).await;
        if self.is_proven.load(Relaxed) {
            self.shared.outputs.lock().remove(&self.conn);
            self.shared.open.fetch_sub(1, Relaxed);
            self.shared.tell(Input::Closed(self.conn)).await;
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
                        // The proof goes out before anything that rests on it.
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
        self.shared.tell(input).await;
    }

    /// Whether the other side has taken it.
    async fn write(&mut self, bytes: &[u8]) -> bool {
        bytes.is_empty()
            || tokio::time::timeout(SEND_WITHIN, self.stream.write_all(bytes)).await.is_ok_and(|sent| sent.is_ok())
    }
}
