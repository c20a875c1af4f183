//! What the agent runs on a member whose program another member starts. It runs commands that come with the gang's key.

use super::{Broken, Incoming, SHELL, Sender, Shell};
use crate::gang::clock::now;
use crate::open_files;
use crate::places::who_gives_way;
use crate::run::descendants::descendants_of;
use crate::serve::gpu::NVIDIA_SMI;
use crate::serve::ports::{address, bind};
use gang::frame::{Channel, Event, FrameError, PROVEN_WITHIN, Secret};
use gang::remote::{MAX_PIECE, Packet};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpid, getppid};
use parking_lot::Mutex;
use procfs::process::Stat;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Maximum number of unproven connections. Beyond it, the address with the most loses its oldest one.
const STRANGERS: usize = 128;
/// Time between two log lines about unproven connections.
const TELL_EVERY: Duration = Duration::from_secs(600);
/// Time between SIGTERM and SIGKILL for a command whose connection is gone.
const GRACE: Duration = Duration::from_secs(5);
/// Time between two checks for remaining processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Serves until a signal ends it, and then waits for all that it has started. The caller of a command ends it, because
/// the command may save first. The agent kills what never ends. Returns the exit code. `folder` contains the setup.
///
/// # Errors
/// If the agent can't listen on the port, or the key can't be read.
pub fn serve(folder: &Path) -> io::Result<u8> {
    let agent = getppid();
    // Before any thread starts, so that all of them have the signals blocked too.
    let all = SigSet::all();
    all.thread_block()?;
    let shell = Shell::load(folder)?;
    let server = Arc::new(Server {
        secret: shell.secret()?,
        session: shell.session(&shell.member()),
        is_over: AtomicBool::new(false),
        last_logged: Mutex::default(),
    });
    // On the pod's own address, if that is known.
    let listener = bind(address("POD_IP"), shell.port)
        .map_err(|error| io::Error::new(error.kind(), format!("can't listen on port {}: {error}", shell.port)))?;
    let accepting = Arc::clone(&server);
    thread::spawn(move || accept(&listener, &accepting));
    eprintln!("agent: runs what mpirun starts here, and no program of its own");
    let signal = loop {
        let signal = all.wait()?;
        if matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT | Signal::SIGHUP) {
            break signal;
        }
    };
    server.is_over.store(true, Relaxed);
    // The agent is the only parent that daemons have left. A GPU query is the agent's own process.
    let is_daemon = |process: &Stat| process.pid != getpid().as_raw() && process.comm != NVIDIA_SMI;
    while getppid() == agent && descendants_of(agent).iter().any(is_daemon) {
        thread::sleep(LOOK_EVERY);
    }
    Ok(128 + signal as u8)
}

struct Server {
    secret: Secret,
    session: String,
    /// No more commands are started.
    is_over: AtomicBool,
    /// When the agent last logged a stranger's connection.
    last_logged: Mutex<Option<Instant>>,
}

/// A connection that has proven nothing yet.
struct UnprovenConnection {
    address: IpAddr,
    stream: TcpStream,
    /// It has proven itself, or it is over.
    is_known: AtomicBool,
}

fn accept(listener: &TcpListener, server: &Arc<Server>) {
    let mut strangers: Vec<Arc<UnprovenConnection>> = Vec::new();
    loop {
        let accepted = listener.accept().and_then(|(stream, from)| Ok((stream.try_clone()?, stream, from)));
        let Ok((stream, other, from)) = accepted else {
            // Usually no file descriptor is left here. Some connections end meanwhile.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        strangers.retain(|stranger| !stranger.is_known.load(Relaxed));
        let stranger = Arc::new(UnprovenConnection { address: from.ip(), stream, is_known: AtomicBool::new(false) });
        strangers.push(Arc::clone(&stranger));
        let oldest_first = strangers.iter().enumerate().map(|(number, stranger)| (stranger.address, number));
        if strangers.len() > STRANGERS
            && let Some(at) = who_gives_way(oldest_first)
        {
            let _ = strangers.remove(at).stream.shutdown(Shutdown::Both);
        }
        let server = Arc::clone(server);
        // If no thread can be started, the connection is closed later.
        let _ = thread::Builder::new().spawn(move || {
            let end = server.attend(other, &stranger.is_known);
            stranger.is_known.store(true, Relaxed);
            let _ = stranger.stream.shutdown(Shutdown::Both);
            if let Err(Broken::Frame(error)) = end {
                server.log_refused(from.ip().to_canonical(), error);
            }
        });
    }
}

impl Server {
    /// Serves one connection while it lasts. A wrong frame is the other side's fault.
    fn attend(&self, stream: TcpStream, is_known: &AtomicBool) -> Result<(), Broken> {
        stream.set_nodelay(true)?;
        let channel = Channel::accept(self.secret.clone(), self.session.clone(), rand::random(), now());
        let mut incoming = Incoming::new(stream, channel);
        let until = Instant::now() + PROVEN_WITHIN;
        let mut events = VecDeque::new();
        let command = loop {
            match events.pop_front() {
                Some(Event::Proven(_)) => {
                    is_known.store(true, Relaxed);
                    continue;
                }
                Some(Event::Message(Packet::Run(command))) => break command,
                Some(Event::Message(_)) => return Err(FrameError::Malformed("a command comes first").into()),
                None => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            incoming.stream.set_read_timeout(Some(left))?;
            match incoming.receive() {
                Ok(Some(more)) => events.extend(more),
                Ok(None) => return Ok(()),
                Err(error) => return Err(error),
            }
        };
        incoming.stream.set_read_timeout(None)?;
        let Some(outgoing) = incoming.channel.take_outgoing() else { return Ok(()) };
        let sender = Arc::new(Mutex::new(Sender { stream: incoming.stream.try_clone()?, outgoing }));
        self.run(&command, incoming, &sender, events)
    }

    fn run(
        &self,
        command: &str,
        mut incoming: Incoming,
        sender: &Arc<Mutex<Sender>>,
        mut events: VecDeque<Event<Packet>>,
    ) -> Result<(), Broken> {
        let spawned = if self.is_over.load(Relaxed) {
            Err((255, "this attempt is ending, and nothing more is begun in it".to_owned()))
        } else {
            spawn(command).map_err(|error| (127, format!("{SHELL} can't be started: {error}")))
        };
        let mut child = match spawned {
            Ok(child) => child,
            Err((code, error)) => {
                let mut sender = sender.lock();
                sender.send(&Packet::Error(format!("agent: {error}\n").into_bytes()))?;
                sender.send(&Packet::Exit(code))?;
                sender.close();
                return Ok(());
            }
        };
        let (group, mut input) = (Pid::from_raw(child.id().cast_signed()), child.stdin.take());
        let is_done = Arc::new(AtomicBool::new(false));
        let waiter = report_exit(child, Arc::clone(sender), Arc::clone(&is_done));
        let end = loop {
            while let Some(event) = events.pop_front() {
                take_input(event, &mut input);
            }
            match incoming.receive() {
                Ok(Some(more)) => events.extend(more),
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        drop(input);
        if !is_done.load(Relaxed) {
            end_group(group, &is_done);
        }
        let _ = waiter.join();
        // The command's end may be the reason that nothing more can be read.
        if is_done.load(Relaxed) { Ok(()) } else { end }
    }

    /// Logs rarely, so that a port scanner does not fill the log.
    fn log_refused(&self, from: IpAddr, error: FrameError) {
        let mut reported = self.last_logged.lock();
        if reported.is_none_or(|reported| reported.elapsed() >= TELL_EVERY) {
            *reported = Some(Instant::now());
            eprintln!("agent: closed a connection to the remote shell's port from {from}: {error}");
        }
    }
}

/// Starts a command as sshd would, but in the program's place and with its environment.
fn spawn(command: &str) -> io::Result<Child> {
    let mut shell = Command::new(SHELL);
    shell.args(["-c", command]).process_group(0);
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let prepare = || {
        open_files::give_back()?;
        Ok(SigSet::empty().thread_set_mask()?)
    };
    // SAFETY: between fork and exec it makes two system calls.
    unsafe { shell.pre_exec(prepare) };
    shell.spawn()
}

/// Writes input to the command, unless it takes no more. A slow command delays further reads, so the end of the
/// connection shows late. The end of the attempt then ends the command.
fn take_input(event: Event<Packet>, input: &mut Option<ChildStdin>) {
    match event {
        Event::Message(Packet::Input(bytes)) => {
            if input.as_mut().is_some_and(|input| input.write_all(&bytes).is_err()) {
                *input = None;
            }
        }
        Event::Message(Packet::InputEnd) => *input = None,
        Event::Message(_) | Event::Proven(_) => {}
    }
}

/// Sends the output of a command, and then how it has ended.
fn report_exit(mut child: Child, sender: Arc<Mutex<Sender>>, is_done: Arc<AtomicBool>) -> JoinHandle<()> {
    let output = child.stdout.take().map(|stdout| pass_on(stdout, Arc::clone(&sender), Packet::Output));
    let error = child.stderr.take().map(|stderr| pass_on(stderr, Arc::clone(&sender), Packet::Error));
    thread::spawn(move || {
        for pump in output.into_iter().chain(error) {
            let _ = pump.join();
        }
        let status = child.wait();
        is_done.store(true, Relaxed);
        let code = status.ok().and_then(|status| status.code().or_else(|| status.signal().map(|signal| 128 + signal)));
        let mut sender = sender.lock();
        let _ = sender.send(&Packet::Exit(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(255)));
        sender.close();
    })
}

fn pass_on(
    mut pipe: impl Read + Send + 'static,
    sender: Arc<Mutex<Sender>>,
    wrap: fn(Vec<u8>) -> Packet,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = vec![0; MAX_PIECE];
        loop {
            match pipe.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    if sender.lock().send(&wrap(buffer[..count].to_vec())).is_err() {
                        return;
                    }
                }
            }
        }
    })
}

/// Ends a command whose caller is gone.
fn end_group(group: Pid, is_done: &AtomicBool) {
    let _ = killpg(group, Signal::SIGTERM);
    let until = Instant::now() + GRACE;
    while !is_done.load(Relaxed) {
        if Instant::now() >= until {
            let _ = killpg(group, Signal::SIGKILL);
            return;
        }
        thread::sleep(LOOK_EVERY);
    }
}
