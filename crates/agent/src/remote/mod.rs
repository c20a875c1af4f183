//! The remote shell of a gang: by it `mpirun` on one member starts its daemons on the others.
//!
//! One member runs the job's program, which is `mpirun`; on the others the agent runs [`serve`] in its place. What `mpirun`
//! takes for `rsh` is this executable under that name ([`call`]): it hands the command to the agent of the host, over a
//! connection that only who has the gang's key can make ([`gang::frame`]), and that of this attempt alone. So there
//! is no daemon to be installed and no key to be given out, nobody needs to be root, and what is started anywhere is a
//! descendant of that member's agent, which ends it with the attempt.
//!
//! What both need lies in a folder beside what the agent remembers; it is written anew for each attempt.

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

/// By what commands are run.
const SHELL: &str = "/bin/sh";
/// In the folder: what both sides need to know.
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
    /// Where those listen that serve.
    pub port: u16,
    /// The workers.
    pub hosts: Vec<String>,
    /// Processes of each.
    pub slots: u32,
    /// Role of this member.
    pub role: String,
    /// Its index in it.
    pub index: u32,
    /// UID of its pod.
    pub pod: String,
    /// It does what others want, and has no program of its own.
    pub serves: bool,
}

impl Shell {
    /// Leaves in the folder of what the agent remembers what this attempt needs. Returns where it is.
    ///
    /// # Errors
    /// Where it can't be written.
    pub fn prepare(&self, state: &Path) -> io::Result<PathBuf> {
        let folder = state.join(REMOTE);
        fs::create_dir_all(&folder)?;
        // By the name that this machine calls itself mpirun knows it without asking anybody.
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

    /// What was left there.
    fn load(folder: &Path) -> io::Result<Self> {
        serde_json::from_slice(&fs::read(folder.join(SETUP))?).map_err(io::Error::from)
    }

    fn secret(&self) -> io::Result<Secret> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.key.display()));
        read_key(&self.key).map_err(named)
    }

    /// What a proof is good for: a command for the agent of this member in this attempt, and for no other. Who relays a connection
    /// to another member gains nothing.
    fn session(&self, server: &MemberId) -> String {
        format!("{}/{}/{}-{}", self.job, self.attempt, server.role, server.index)
    }

    /// The member whose host that is: hosts are those of the workers, by index.
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

/// Why nothing more comes of a connection.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// The end of a connection that receives.
struct Incoming {
    stream: TcpStream,
    channel: Channel<Packet>,
    buffer: Vec<u8>,
}

impl Incoming {
    fn new(stream: TcpStream, channel: Channel<Packet>) -> Self {
        Self { stream, channel, buffer: vec![0; 16 * 1024] }
    }

    /// What has come next, of which there may be nothing; none at the end. What it takes to prove oneself is answered.
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

/// The end of a proven connection that sends.
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
    fn what_an_attempt_needs_is_left_and_replaced() {
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
