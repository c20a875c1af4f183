//! What a gang of thousands costs the agent that leads it.
//!
//!     cargo bench -p agent --bench leader -- [MEMBERS] [SECONDS]
//!
//! A real agent leads; this process is all the others, each with its own connection over loopback, and runs no programs. Printed
//! are the CPU seconds of the leader's whole process while the gang forms, while nothing happens, and while one member fails
//! and all are started again. No figure is judged here.

use gang::frame::{Channel, Event, NONCE, Secret};
use gang::message::{Incarnation, MemberId, Message, Outcome, Time};
use gang::{Conn, Gang, Input, Memory, Order, Setup, Timing};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::gang::{GangSetup, Restarts};
use std::collections::VecDeque;
use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

type Fallible<T> = Result<T, Box<dyn Error>>;

const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";
const JOB: &str = "bench";
/// How long a phase may take.
const WITHIN: Duration = Duration::from_secs(120);

/// What the followers have in common.
struct Followers {
    port: u16,
    began: Instant,
    /// Number of members that have the order to start, for each of the first two attempts.
    started: [AtomicU32; 2],
    /// The first follower's program is to fail.
    fails: AtomicBool,
}

impl Followers {
    fn now(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// One member, until it gets the order to exit. It dials again as a real one does.
    async fn follow(&self, index: u32) -> Fallible<()> {
        let (member, pod, job) = (MemberId::new("worker", index), format!("pod-{index}"), JOB.to_owned());
        let incarnation = Incarnation { boot: 1, pod: pod.clone() };
        let (timing, memory) = (Timing::default(), Memory::default());
        let setup = Setup { job, member: member.clone(), incarnation, timing, memory, leader: None };
        let mut follower = Follower { index, gang: Gang::new(setup, self.now()), has_failed: false };
        let mut wait = Duration::from_millis(20);
        for conn in (1..).map(Conn) {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", self.port)).await {
                let nonce = rand::random::<[u8; NONCE]>();
                let secret = Secret::new(KEY)?;
                let (channel, first) = Channel::dial(secret, JOB.to_owned(), nonce, &member, &pod, self.now())?;
                match self.converse(&mut follower, conn, stream, channel, &first).await {
                    Ok(()) => break,
                    Err(_) => drop(follower.gang.step(self.now(), Input::Closed(conn))),
                }
            }
            tokio::time::sleep(wait.mul_f64(rand::random_range(0.5..1.0))).await;
            wait = (wait * 2).min(Duration::from_secs(1));
        }
        Ok(())
    }

    /// One connection, until it is closed or the member gets the order to exit.
    async fn converse(
        &self,
        follower: &mut Follower,
        conn: Conn,
        mut stream: TcpStream,
        mut channel: Channel<Message>,
        first: &[u8],
    ) -> Fallible<()> {
        stream.write_all(first).await?;
        let mut buffer = vec![0; 8 * 1024];
        loop {
            let mut inputs = VecDeque::from([Input::Tick]);
            let due = follower.gang.wake_at(self.now()).map_or(Duration::MAX, |at| at.since(self.now()));
            tokio::select! {
                read = stream.read(&mut buffer) => {
                    let (count, mut answer) = (read?, Vec::new());
                    if count == 0 {
                        return Err("the leader has closed the connection".into());
                    }
                    for event in channel.receive(&buffer[..count], self.now(), &mut answer)? {
                        inputs.push_back(match event {
                            Event::Proven(_) => Input::Dialed(conn),
                            Event::Message(message) => Input::Received(conn, message),
                        });
                    }
                    stream.write_all(&answer).await?;
                }
                () = tokio::time::sleep(due.min(Duration::from_millis(500))) => {}
            }
            if follower.index == 1 && self.fails.load(Relaxed) && !std::mem::replace(&mut follower.has_failed, true) {
                inputs.push_back(Input::Ended { attempt: 1, outcome: Outcome::Failed, report: String::new() });
            }
            while let Some(input) = inputs.pop_front() {
                for order in follower.gang.step(self.now(), input) {
                    match order {
                        Order::Send { message, .. } => stream.write_all(&channel.send(&message)?).await?,
                        Order::Start { attempt, .. } => {
                            if let Some(started) = self.started.get(attempt as usize - 1) {
                                started.fetch_add(1, Relaxed);
                            }
                        }
                        Order::Stop { attempt, .. } => {
                            let (outcome, report) = (Outcome::Stopped, String::new());
                            inputs.push_back(Input::Ended { attempt, outcome, report });
                        }
                        Order::Close { why, .. } => return Err(why.into()),
                        Order::Exit(_) => return Ok(()),
                        Order::Choose { .. } => {}
                    }
                }
            }
        }
    }
}

/// A member that runs nothing.
struct Follower {
    index: u32,
    gang: Gang,
    has_failed: bool,
}

/// CPU seconds that a process has taken.
fn cpu(pid: u32) -> Fallible<f64> {
    let stat = procfs::process::Process::new(pid.cast_signed())?.stat()?;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    Ok((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64)
}

/// Ends with its owner.
struct Leader(Child);

impl Drop for Leader {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

fn lead(members: u32, port: u16, room: &std::path::Path) -> Fallible<Leader> {
    let leader = "127.0.0.1".to_owned();
    let setup = GangSetup {
        uid: JOB.to_owned(),
        workers: members,
        leader,
        port,
        master_port: 29500,
        restarts: Restarts::Always,
        backoff_limit: 9,
        ..GangSetup::default()
    };
    let [file, key, message] = ["gang.json", "key", "message"].map(|name| room.join(name));
    std::fs::write(&file, serde_json::to_vec(&setup)?)?;
    std::fs::write(&key, KEY)?;
    let mut agent = Command::new(env!("CARGO_BIN_EXE_agent"));
    let option = |name: &str, path: &std::path::Path| format!("--{name}={}", path.display());
    agent.args(["run", "--attempt=1", &option("termination-log", &message), &option("gang", &file)]);
    agent.args([&option("gang-key", &key), "--", "sleep", "100000"]);
    agent.env("NODE_RANK", "0").env("POD_UID", "pod-0").stdin(Stdio::null()).stdout(Stdio::null());
    Ok(Leader(agent.spawn()?))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Fallible<()> {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let (members, seconds) = (numbers.next().unwrap_or(4096), numbers.next().unwrap_or(20));
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let room = tempfile::tempdir()?;
    let leader = lead(members, port, room.path())?;
    let pid = leader.0.id();
    let (started, fails) = (Default::default(), AtomicBool::new(false));
    let followers = Arc::new(Followers { port, began: Instant::now(), started, fails });
    println!("{:>8}  {:28}  {:>8}  {:>11}  {:>6}", "members", "phase", "seconds", "CPU seconds", "cores");
    let mut before = (Instant::now(), 0.0);
    let mut print = |phase: &str| -> Fallible<()> {
        let (at, used) = (before.0.elapsed().as_secs_f64(), cpu(pid)?);
        let took = used - before.1;
        println!("{members:>8}  {phase:28}  {at:>8.2}  {took:>11.2}  {:>6.3}", took / at);
        before = (Instant::now(), used);
        Ok(())
    };
    for index in 1..members {
        let followers = Arc::clone(&followers);
        tokio::spawn(async move {
            if let Err(error) = followers.follow(index).await {
                eprintln!("worker {index}: {error}");
            }
        });
    }
    all_started(&followers.started[0], members).await?;
    print("until all have been started")?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    print("the first five seconds")?;
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    print("while nothing happens")?;
    followers.fails.store(true, Relaxed);
    all_started(&followers.started[1], members).await?;
    print("a failure, and all started")?;
    Ok(())
}

/// Waits until all members but the leader's own have the order to start.
async fn all_started(count: &AtomicU32, members: u32) -> Fallible<()> {
    let until = Instant::now() + WITHIN;
    while count.load(Relaxed) < members - 1 {
        if Instant::now() > until {
            return Err(format!("{} of {} were told to start", count.load(Relaxed), members - 1).into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
