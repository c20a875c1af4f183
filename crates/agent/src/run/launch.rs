//! Finding the command and starting it.

use crate::open_files;
use crate::run::expand::{Variables, expand};
use nix::libc;
use nix::sys::signal::SigSet;
use nix::unistd::{AccessFlags, Pid, access, getpid, tcsetpgrp};
use protocol::report::{LaunchError, LaunchErrorKind};
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdout, Command, Stdio};

/// Where commands are searched if the environment has no PATH: the default of container runtimes.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A program with everything expanded.
pub struct Program {
    /// The command as given, and its arguments.
    pub argv: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
}

/// A running program.
pub struct RunningProgram {
    pub pid: Pid,
    pub stdout: Option<ChildStdout>,
    pub stderr: ChildStderr,
}

impl Program {
    /// Expands `variables` in the command and in the values of `inherited`, and adds the variables `of_program`. The
    /// latter take precedence over `inherited`.
    pub fn new(
        argv: &[OsString],
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
        variables: &Variables,
        of_program: Variables,
    ) -> Self {
        let expanded = |text: &OsStr| OsString::from_vec(expand(text.as_bytes(), variables));
        let mut env: Vec<_> = inherited
            .into_iter()
            .filter(|(name, _)| !name.to_str().is_some_and(|name| of_program.contains_key(name)))
            .map(|(name, value)| (name, expanded(&value)))
            .collect();
        env.extend(of_program.into_iter().map(|(name, value)| (OsString::from(name), OsString::from(value))));
        Self { argv: argv.iter().map(|arg| expanded(arg)).collect(), env }
    }

    /// Starts the program with `signal_mask` in its own process group: a script's `kill 0` must not look like a signal
    /// from outside. stderr is piped, and stdout unless it is a terminal, to which programs write differently.
    #[expect(clippy::expect_used, reason = "it was asked for")]
    pub fn start(&self, signal_mask: SigSet) -> Result<RunningProgram, LaunchError> {
        let Some((name, args)) = self.argv.split_first() else {
            return Err(error(LaunchErrorKind::CommandNotFound, "no command was given".to_owned()));
        };
        let file = self.find(name)?;
        let mut command = Command::new(&file);
        command.arg0(name).args(args).env_clear().envs(self.env.iter().map(|(name, value)| (name, value)));
        let stdout = if std::io::stdout().is_terminal() { Stdio::inherit() } else { Stdio::piped() };
        command.stdout(stdout).stderr(Stdio::piped()).process_group(0);
        let on_terminal = std::io::stdin().is_terminal();
        let prepare = move || {
            if on_terminal {
                // Taking the terminal from the background raises SIGTTOU, unless that is blocked.
                SigSet::all().thread_set_mask()?;
                tcsetpgrp(std::io::stdin(), getpid())?;
            }
            open_files::give_back()?;
            signal_mask.thread_set_mask()?;
            Ok(())
        };
        // SAFETY: between fork and exec it makes a few system calls and allocates nothing (stdin was set up by
        // `is_terminal` before).
        unsafe { command.pre_exec(prepare) };
        let mut child = command.spawn().map_err(|cause| spawn_error(name, &file, &cause))?;
        let stderr = child.stderr.take().expect("stderr was asked to be piped");
        Ok(RunningProgram { pid: Pid::from_raw(child.id().cast_signed()), stdout: child.stdout.take(), stderr })
    }

    /// Finds the file of `name` as `execvp` does. A name with a slash is a path, and any other is looked up in PATH.
    fn find(&self, name: &OsStr) -> Result<PathBuf, LaunchError> {
        let path = self.env.iter().find(|(name, _)| name == "PATH").map_or(OsStr::new(DEFAULT_PATH), |(_, path)| path);
        let candidates: Vec<PathBuf> = if name.is_empty() {
            Vec::new()
        } else if name.as_bytes().contains(&b'/') {
            vec![name.into()]
        } else {
            // An empty element means the working directory, and `join` must not turn it into a bare name again.
            std::env::split_paths(path)
                .map(|dir| if dir.as_os_str().is_empty() { "./".into() } else { dir })
                .map(|dir: PathBuf| dir.join(name))
                .collect()
        };
        match candidates.iter().find(|file| is_executable(file)) {
            Some(found) => Ok(found.clone()),
            None => Err(lookup_error(name, path, &candidates)),
        }
    }
}

/// Why none of `candidates` can be executed.
fn lookup_error(name: &OsStr, path: &OsStr, candidates: &[PathBuf]) -> LaunchError {
    let is_path = name.as_bytes().contains(&b'/');
    let is_denied = |file: &&PathBuf| match file.metadata() {
        Ok(meta) => is_path || !meta.is_dir(),
        // If this user may not search a directory in PATH, it is unknown whether it has the command.
        Err(error) => is_path && error.kind() == std::io::ErrorKind::PermissionDenied,
    };
    let (name, user) = (name.display(), nix::unistd::geteuid());
    let directory = std::env::current_dir().unwrap_or_default();
    let directory = directory.display();
    match candidates.iter().find(is_denied) {
        Some(denied) if denied.is_dir() => error(
            LaunchErrorKind::PermissionDenied,
            format!(
                "command {name:?} is a directory (working directory {directory}); spec.command must begin with a program"
            ),
        ),
        Some(denied) => error(
            LaunchErrorKind::PermissionDenied,
            format!(
                "command {name:?}: user {user} may not execute {} (working directory {directory}); make it executable \
                 for that user in the image (chmod a+rx), or run it by its interpreter, as in command: [python3, {}]",
                denied.display(),
                denied.display()
            ),
        ),
        None if is_path => error(
            LaunchErrorKind::CommandNotFound,
            format!(
                "command {name:?} not found: there is no such file (working directory {directory}); correct \
                 spec.command, or use an image that has it"
            ),
        ),
        None => error(
            LaunchErrorKind::CommandNotFound,
            format!(
                "command {name:?} not found: correct spec.command, or use an image that has it; looked in PATH={}",
                path.display()
            ),
        ),
    }
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && access(file, AccessFlags::X_OK).is_ok()
}

/// The error when the kernel refuses a file that exists and is executable.
fn spawn_error(name: &OsStr, file: &Path, cause: &std::io::Error) -> LaunchError {
    let (name, file) = (name.display(), file.display());
    match cause.raw_os_error() {
        Some(libc::ENOENT) => error(
            LaunchErrorKind::InterpreterNotFound,
            format!(
                "command {name:?} found at {file}, but not what runs it: the interpreter of its \
                 first line (#!) or its dynamic loader is not in the image; use an image that has it, or run it by another interpreter"
            ),
        ),
        Some(libc::ENOEXEC) => error(
            LaunchErrorKind::NotExecutable,
            format!(
                "command {name:?}: {file} is no program for this CPU architecture ({}), and no \
                 script with a #! line; use an image built for this architecture",
                std::env::consts::ARCH
            ),
        ),
        Some(libc::EACCES | libc::EPERM) => error(
            LaunchErrorKind::PermissionDenied,
            format!(
                "command {name:?}: the kernel refused to execute {file} ({cause}); its file \
                 system may be mounted noexec: mount it without, or run it by its interpreter"
            ),
        ),
        Some(libc::E2BIG) => error(
            LaunchErrorKind::LaunchFailed,
            format!(
                "command {name:?}: arguments and environment are too long together ({cause}); \
                 shorten spec.args or spec.env, or pass a file"
            ),
        ),
        _ => error(LaunchErrorKind::LaunchFailed, format!("command {name:?}: {file} could not be started: {cause}")),
    }
}

fn error(kind: LaunchErrorKind, message: String) -> LaunchError {
    LaunchError { kind, message }
}

/// The exit code that a shell would use.
pub fn exit_code(kind: LaunchErrorKind) -> i32 {
    match kind {
        LaunchErrorKind::CommandNotFound | LaunchErrorKind::InterpreterNotFound => 127,
        LaunchErrorKind::PermissionDenied
        | LaunchErrorKind::NotExecutable
        | LaunchErrorKind::InvalidOption
        | LaunchErrorKind::CheckpointUnusable
        | LaunchErrorKind::StorageUnavailable
        | LaunchErrorKind::FolderInUse
        | LaunchErrorKind::NoUsableCheckpoint
        | LaunchErrorKind::ContentRefused
        | LaunchErrorKind::ContentUnavailable
        | LaunchErrorKind::CodeUnavailable
        | LaunchErrorKind::LaunchFailed => 126,
    }
}
