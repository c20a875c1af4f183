//! The remote shell of a gang. Through it, `mpirun` on one member starts its daemons on the others.
//!
//! One member runs the job's program, which is `mpirun`. On the others, the agent runs [`serve`] in its place. This
//! executable serves `mpirun` as `rsh` ([`call`]), and sends the command to the agent of the host. The connection
//! requires the gang's key ([`gang::frame`]), and belongs to this attempt alone. No daemon has to be installed, no key
//! handed out, and no process has to be root. Everything started on a member descends from that member's agent, which
//! ends it with the attempt.
//!
//! Both sides read a folder beside the agent's memory. It is rewritten for each attempt.

pub mod call;
pub mod serve;

use crate::gang::read_key;
use crate::install::replace;
use gang::frame::{Channel, Event, FrameError, Outgoing, Secret};
use gang::message::MemberId;
use gang::remote::Packet;
use nix::unistd::gethostname;
use protocol::gang::{HOSTFILE, HYDRA_HOSTS, REMOTE, RSH};
use protocol::role::RoleName;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::{fs, os::unix};

/// The shell that runs commands.
const SHELL: &str = "/bin/sh";
/// Name of the file with the setup of both sides.
const SETUP: &str = "shell.json";

/// The remote shell of one attempt, as one member knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shell {
    /// UID of the TrainingJob.
    pub job: String,
    /// The attempt.
    pub attempt: u32,
    /// The file with the gang's key.
    pub key: PathBuf,
    /// Port at which the serving members listen.
    pub port: u16,
    /// The workers.
    pub hosts: Vec<String>,
    /// Number of processes on each worker.
    pub slots: u32,
    /// Role of this member.
    pub role: String,
    /// Index of this member in its role.
    pub index: u32,
    /// UID of its pod.
    pub pod: String,
    /// It runs the commands of others, and has no program of its own.
    pub serves: bool,
}

impl Shell {
    /// Writes what this attempt needs below `state`, the folder of the agent's memory. Returns the path.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn prepare(&self, state: &Path) -> io::Result<PathBuf> {
        let folder = state.join(REMOTE);
        fs::create_dir_all(&folder)?;
        // mpirun recognises this machine's own host name without a lookup.
        let name = gethostname()?.into_string().ok();
        let hosts = self.hosts.iter().map(|host| match &name {
            Some(name) if self.own_host() == Some(host) && first_label(host) == name => name,
            _ => host,
        });
        let list = |of: &dyn Fn(&str) -> String| hosts.clone().map(|host| of(host)).collect::<String>();
        replace(&folder.join(HOSTFILE), list(&|host| format!("{host} slots={}\n", self.slots)).as_bytes())?;
        replace(&folder.join(HYDRA_HOSTS), list(&|host| format!("{host}:{}\n", self.slots)).as_bytes())?;
        replace(&folder.join(SETUP), &serde_json::to_vec(self)?)?;
        let new = folder.join("rsh.tmp");
        let _ = fs::remove_file(&new);
        unix::fs::symlink(std::env::current_exe()?, &new)?;
        fs::rename(&new, folder.join(RSH))?;
        Ok(folder)
    }

    /// Loads the setup that was stored there.
    fn load(folder: &Path) -> io::Result<Self> {
        serde_json::from_slice(&fs::read(folder.join(SETUP))?).map_err(io::Error::from)
    }

    fn secret(&self) -> io::Result<Secret> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.key.display()));
        read_key(&self.key).map_err(named)
    }

    /// The scope of a proof: only a command for the agent of this member in this attempt. Relaying a connection to
    /// another member gains nothing.
    fn session(&self, server: &MemberId) -> String {
        format!("{}/{}/{}-{}", self.job, self.attempt, server.role, server.index)
    }

    /// The member on this host. The hosts are those of the workers, by index.
    fn member_of(&self, host: &str) -> MemberId {
        let index = self.hosts.iter().position(|known| known == host).and_then(|index| u32::try_from(index).ok());
        MemberId::new(RoleName::WORKER.as_str(), index.unwrap_or(u32::MAX))
    }

    /// This member's host, if it is one of the workers.
    fn own_host(&self) -> Option<&String> {
        let index = usize::try_from(self.index).ok().filter(|_| self.role == RoleName::WORKER.as_str())?;
        self.hosts.get(index)
    }

    fn member(&self) -> MemberId {
        MemberId::new(self.role.clone(), self.index)
    }
}

fn first_label(host: &str) -> &str {
    host.split_once('.').map_or(host, |(label, _)| label)
}

/// Why a connection has failed.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// The receiving end of a connection.
struct Incoming {
    stream: TcpStream,
    channel: Channel<Packet>,
    buffer: Vec<u8>,
}

impl Incoming {
    fn new(stream: TcpStream, channel: Channel<Packet>) -> Self {
        Self { stream, channel, buffer: vec![0; 16 * 1024] }
    }

    /// The next events, possibly none, or `None` at the end. Messages of the proof are answered.
    fn receive(&mut self) -> Result<Option<Vec<Event<Packet>>>, Broken> {
        let count = match self.stream.read(&mut self.buffer) {
            Ok(0) => return Ok(None),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Some(Vec::new())),
            Err(error) => return Err(error.into()),
        };
        let mut answer = Vec::new();
        let events = self.channel.receive(&self.buffer[..count], crate::gang::clock::now(), &mut answer)?;
        self.stream.write_all(&answer)?;
        Ok(Some(events))
    }
}

/// The sending end of a proven connection.
struct Sender {
    stream: TcpStream,
    outgoing: Outgoing,
}

impl Sender {
    fn send(&mut self, packet: &Packet) -> Result<(), Broken> {
        let bytes = self.outgoing.send(packet)?;
        Ok(self.stream.write_all(&bytes)?)
    }

    fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attempt_replaces_the_remote_shell_setup() {
        let state = tempfile::tempdir().unwrap();
        let shell = |attempt, hosts: &[&str]| Shell {
            attempt,
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            slots: 4,
            ..Shell::default()
        };
        shell(1, &["x-training-0.x-headless"]).prepare(state.path()).unwrap();
        let second = shell(2, &["x-training-0.x-headless", "x-training-1.x-headless"]);
        let folder = second.prepare(state.path()).unwrap();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(read(HOSTFILE), "x-training-0.x-headless slots=4\nx-training-1.x-headless slots=4\n");
        assert_eq!(read(HYDRA_HOSTS), "x-training-0.x-headless:4\nx-training-1.x-headless:4\n");
        assert_eq!(fs::read_link(folder.join(RSH)).unwrap(), std::env::current_exe().unwrap());
        assert_eq!(Shell::load(&folder).unwrap(), second);
    }
}
