//! The command that `mpirun` uses as `rsh`: the agent of a host runs a command as if it ran here.

use super::{Broken, Incoming, SHELL, Sender, Shell, first_label};
use crate::gang::clock::now;
use gang::frame::{Channel, Event, PROVEN_WITHIN, Secret};
use gang::remote::{MAX_PIECE, Packet};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Exit code of ssh for its own errors, as opposed to the command's.
const FAILED: u8 = 255;
/// Maximum time of one try to connect.
const DIAL_WITHIN: Duration = Duration::from_secs(3);
/// Times between the first two tries and between later ones. The agent may have to fetch a checkpoint before it serves.
const DIAL_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Time after which the process prints what it waits for.
const SAY_AFTER: Duration = Duration::from_secs(30);
/// How long another process may answer at the host, such as one left from an earlier attempt.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// Options of ssh that a value follows. They have no effect here, like all other options.
const WITH_VALUE: &str = "bBcDeEFIiJlLmoOpPQRSwW";

/// A command, and the host that is to run it.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    host: String,
    command: String,
}

/// Runs the command in the arguments, and returns the exit code. `folder` contains the setup.
pub fn call(folder: &Path, args: impl Iterator<Item = OsString>) -> u8 {
    let done = parse(args).and_then(|call| {
        let shell = Shell::load(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let host = known(&shell.hosts, &call.host)
            .ok_or_else(|| format!("{} is no worker of this gang: these are {}", call.host, shell.hosts.join(", ")))?;
        if shell.own_host().is_some_and(|own| own == host) && !shell.serves {
            // No agent serves this host, and none is needed.
            return Err(format!("{SHELL}: {}", Command::new(SHELL).args(["-c", &call.command]).exec()));
        }
        let secret = shell.secret().map_err(|error| format!("can't read the gang's key: {error}"))?;
        run(connect(&shell, &secret, host)?, call.command).map_err(|error| format!("{host}: {error}"))
    });
    done.unwrap_or_else(|error| {
        // In one write, because mpirun may write to the same pipe at the same time.
        let _ = std::io::stderr().write_all(format!("agent: {error}\n").as_bytes());
        FAILED
    })
}

/// Parses the arguments as ssh does: options, a host, and a command whose words are joined by spaces.
fn parse(args: impl Iterator<Item = OsString>) -> Result<Call, String> {
    let mut args = args.map(|arg| arg.into_string().map_err(|arg| format!("{} is not UTF-8", arg.display())));
    let host = loop {
        let arg = args.next().ok_or("write a host and a command")??;
        match arg.strip_prefix('-') {
            None => break arg,
            Some(option) if option.len() == 1 && WITH_VALUE.contains(option) => {
                args.next().transpose()?;
            }
            Some(_) => {}
        }
    };
    let command = args.collect::<Result<Vec<_>, _>>()?.join(" ");
    if command.trim().is_empty() {
        return Err("write a command after the host: a login without a command is not possible".to_owned());
    }
    let host = host.rsplit_once('@').map_or(host.as_str(), |(_, host)| host).to_owned();
    Ok(Call { host, command })
}

/// The host with that name or that first label, because Open MPI may leave the rest out.
fn known<'h>(hosts: &'h [String], name: &str) -> Option<&'h str> {
    let is_short = |host: &&String| first_label(host) == name;
    let found = hosts.iter().find(|host| *host == name).or_else(|| hosts.iter().find(is_short));
    found.map(String::as_str)
}

/// Connects to the host's agent once it serves. It begins when the whole gang does, but either side may be faster. If
/// it never serves, the gang ends, and this process with it.
fn connect(shell: &Shell, secret: &Secret, host: &str) -> Result<(Incoming, Sender), String> {
    let (mut wait, longest) = DIAL_AGAIN;
    let (since, mut is_said, mut refused) = (Instant::now(), false, None);
    loop {
        let why = match dial(host, shell.port) {
            Ok(stream) => match greet(stream, shell, secret, host) {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    let first = *refused.get_or_insert_with(Instant::now);
                    if first.elapsed() >= REFUSED_FOR {
                        return Err(format!("{host} is not served by an agent of this attempt: {error}"));
                    }
                    error.to_string()
                }
            },
            Err(error) => error.to_string(),
        };
        if since.elapsed() >= SAY_AFTER && !is_said {
            eprintln!("agent: waiting for the agent of {host}, port {}: {why}", shell.port);
            is_said = true;
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(longest);
    }
}

fn dial(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("its name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, DIAL_WITHIN) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Both sides prove themselves. The other side must be the agent of this host.
fn greet(mut stream: TcpStream, shell: &Shell, secret: &Secret, host: &str) -> Result<(Incoming, Sender), Broken> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PROVEN_WITHIN))?;
    let until = Instant::now() + PROVEN_WITHIN;
    let nonce = rand::random();
    let session = shell.session(&shell.member_of(host));
    let (channel, first) = Channel::dial(secret.clone(), session, nonce, &shell.member(), &shell.pod, now())?;
    stream.write_all(&first)?;
    let mut incoming = Incoming::new(stream, channel);
    while Instant::now() < until {
        let events = incoming.receive()?.ok_or_else(|| std::io::Error::other("it has closed the connection"))?;
        if events.iter().any(|event| matches!(event, Event::Proven(_))) {
            incoming.stream.set_read_timeout(None)?;
            let outgoing = incoming.channel.take_outgoing().ok_or_else(|| std::io::Error::other("it is not proven"))?;
            let sender = Sender { stream: incoming.stream.try_clone()?, outgoing };
            return Ok((incoming, sender));
        }
    }
    Err(std::io::Error::other("it has not proven itself in time").into())
}

/// Sends the command, and passes on its input and output until it has ended.
fn run((mut incoming, mut sender): (Incoming, Sender), command: String) -> Result<u8, Broken> {
    sender.send(&Packet::Run(command))?;
    // The thread ends with this process.
    std::thread::spawn(move || pass_on_input(&mut sender));
    while let Some(events) = incoming.receive()? {
        for event in events {
            match event {
                Event::Message(Packet::Output(bytes)) => {
                    // A closed stdout ends this process.
                    std::io::stdout().write_all(&bytes).and_then(|()| std::io::stdout().flush())?;
                }
                Event::Message(Packet::Error(bytes)) => std::io::stderr().write_all(&bytes)?,
                Event::Message(Packet::Exit(code)) => return Ok(code),
                Event::Message(_) | Event::Proven(_) => {}
            }
        }
    }
    Err(std::io::Error::other("the connection was lost before the command had ended").into())
}

fn pass_on_input(sender: &mut Sender) {
    let mut buffer = vec![0; MAX_PIECE];
    loop {
        match std::io::stdin().read(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(count @ 1..) => {
                if sender.send(&Packet::Input(buffer[..count].to_vec())).is_err() {
                    return;
                }
            }
            Ok(0) | Err(_) => {
                let _ = sender.send(&Packet::InputEnd);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<(String, String), String> {
        parse(words.iter().map(OsString::from)).map(|call| (call.host, call.command))
    }

    #[test]
    fn arguments_are_parsed_like_ssh() {
        let is = |words: &[&str], host: &str, command: &str| {
            assert_eq!(parsed(words), Ok((host.to_owned(), command.to_owned())));
        };
        is(&["h", "a"], "h", "a");
        // The arguments of Hydra, of Open MPI, and of a person.
        is(
            &["-x", "h.d", "\"/usr/bin/hydra_pmi_proxy\"", "--port", "3"],
            "h.d",
            "\"/usr/bin/hydra_pmi_proxy\" --port 3",
        );
        is(&["-q", "-o", "StrictHostKeyChecking=no", "-p", "22", "-p22", "h", "-l", "a b"], "h", "-l a b");
        is(&["-l", "mpi", "me@h", "ls", "-l"], "h", "ls -l");
        for words in [&[][..], &["h"], &["-x"], &["-l"], &["-l", "h"], &["h", " "]] {
            assert!(parsed(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn only_gang_hosts_can_be_called() {
        let hosts = ["x-training-0.x-headless", "x-training-10.x-headless", "127.0.0.2"].map(str::to_owned);
        assert_eq!(known(&hosts, "x-training-10.x-headless"), Some(hosts[1].as_str()));
        assert_eq!(known(&hosts, "x-training-10"), Some(hosts[1].as_str()));
        assert_eq!(known(&hosts, "127.0.0.2"), Some("127.0.0.2"));
        for name in ["", "x-training-1", "x-training-1.x-headless", "127.0.0.3", "elsewhere", "x-headless"] {
            assert_eq!(known(&hosts, name), None, "{name}");
        }
    }
}
