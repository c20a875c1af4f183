//! What a command starts: a launcher of many processes, or the program itself.

/// What starts the processes of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Launcher {
    /// None, because the command is the program.
    None,
    /// torchrun, or a launcher that takes its options.
    Torch,
    /// mpirun, which also starts the processes of the other workers.
    Mpi,
}

/// A command, as far as it can be parsed.
pub(super) struct ParsedCommand {
    pub launcher: Launcher,
    /// Words of the launcher's own command line.
    words: Vec<String>,
}

const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ash", "zsh"];
/// Words before a command that do not change it.
const BEFORE: [&str; 4] = ["exec", "env", "nohup", "time"];
const TORCH_MODULES: [&str; 4] =
    ["torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"];

/// Parses a command with its arguments. In a shell script it parses each command.
pub(super) fn started(command: &[String]) -> ParsedCommand {
    let commands = commands(command);
    let found = commands.into_iter().map(|words| (launcher(&words), words)).find(|(is, _)| *is != Launcher::None);
    let (launcher, mut words) = found.unwrap_or((Launcher::None, Vec::new()));
    // The words from here on belong to the program.
    words.truncate(words.iter().position(|word| word.ends_with(".py")).unwrap_or(words.len()));
    ParsedCommand { launcher, words }
}

impl ParsedCommand {
    /// Returns the value of the launcher's option for the number of processes of each worker.
    pub fn procs(&self) -> Option<&str> {
        self.option(&["--nproc_per_node", "--nproc-per-node"])
    }

    /// Returns options that set where the workers meet, which the operator does. Options with a variable are correct.
    pub fn meeting(&self) -> Vec<&str> {
        const OPTIONS: [&str; 5] = ["--master_addr", "--node_rank", "--master_port", "--nnodes", "--standalone"];
        let names = |word: &str| {
            let name = word.split('=').next().unwrap_or(word).replace('-', "_").replacen("__", "--", 1);
            name.starts_with("--rdzv_") || OPTIONS.contains(&name.as_str())
        };
        let reported = |at: usize| {
            let word = &self.words[at];
            word.contains('$') || !word.contains('=') && self.words.get(at + 1).is_some_and(|next| next.contains('$'))
        };
        let options = self.words.iter().enumerate().filter(|(at, word)| names(word) && !reported(*at));
        options.map(|(_, word)| word.as_str()).collect()
    }

    fn option(&self, names: &[&str]) -> Option<&str> {
        self.words.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
            Some((name, value)) => names.contains(&name).then_some(value),
            None if names.contains(&word.as_str()) => self.words.get(at + 1).map(String::as_str),
            None => None,
        })
    }
}

/// Splits a command line into simple commands.
fn commands(command: &[String]) -> Vec<Vec<String>> {
    let is_shell = command.first().is_some_and(|first| SHELLS.contains(&base(first)));
    let script = command.iter().skip(1).position(|word| word.starts_with('-') && word.ends_with('c'));
    match (is_shell, script.and_then(|at| command.get(at + 2))) {
        (true, Some(script)) => {
            // A variable is neither a subshell nor a group.
            let variable = text::constant(r"\$[({]([A-Za-z_][A-Za-z0-9_]*)[^)}]*[)}]");
            let script = variable.replace_all(script, "$$$1").replace("\\\n", " ");
            let commands = script.split(['\n', ';', '&', '|', '(', ')', '{', '}']);
            commands
                .map(|words| words.split_whitespace().map(|w| w.trim_matches(['"', '\'']).to_owned()).collect())
                .collect()
        }
        _ => vec![command.to_vec()],
    }
}

fn launcher(words: &[String]) -> Launcher {
    let is_before = |word: &&String| BEFORE.contains(&word.as_str()) || is_assignment(word);
    let mut words = words.iter().skip_while(is_before).map(String::as_str);
    match words.next().map(base) {
        Some("torchrun" | "deepspeed") => Launcher::Torch,
        Some("accelerate") if words.next() == Some("launch") => Launcher::Torch,
        Some("mpirun" | "mpiexec" | "mpiexec.hydra" | "horovodrun" | "orterun" | "prterun") => Launcher::Mpi,
        Some(python) if python.starts_with("python") => {
            let mut options = words.skip_while(|word| word.starts_with('-') && *word != "-m");
            let module = (options.next() == Some("-m")).then(|| options.next()).flatten();
            if module.is_some_and(|module| TORCH_MODULES.contains(&module)) { Launcher::Torch } else { Launcher::None }
        }
        _ => Launcher::None,
    }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
    })
}

/// Returns the last part of a path.
fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> ParsedCommand {
        // A script is one word.
        let words: Vec<String> = match line.split_once("-c ") {
            Some((before, script)) => before.split_whitespace().chain(["-c", script]).map(str::to_owned).collect(),
            None => line.split_whitespace().map(str::to_owned).collect(),
        };
        started(&words)
    }

    #[test]
    fn launchers_are_recognized() {
        for line in [
            "torchrun train.py",
            "/opt/conda/bin/torchrun --nproc_per_node=2 train.py",
            "python -m torch.distributed.launch train.py",
            "python3.11 -u -m torch.distributed.run train.py",
            "accelerate launch train.py",
            "sh -c cd /app && OMP_NUM_THREADS=1 exec torchrun train.py",
            "bash -c set -e\ntorchrun \\\n --nproc-per-node 2 train.py",
        ] {
            assert_eq!(parse(line).launcher, Launcher::Torch, "{line}");
        }
        for line in ["mpirun -np 8 python train.py", "/usr/bin/mpiexec -n 2 ./train", "bash -c env; mpirun ./train"] {
            assert_eq!(parse(line).launcher, Launcher::Mpi, "{line}");
        }
    }

    #[test]
    fn launcher_lookalikes_are_not_recognized() {
        for line in [
            "python train.py --launcher torchrun",
            "python torchrun.py",
            "/opt/torchrun/train.sh",
            "python -m torch.distributed.checkpoint.format_utils dcp_to_torch",
            "python train.py -m torch.distributed.run",
            "accelerate config",
            "sh -c echo torchrun; python train.py",
            "cat mpirun.log",
            "python -m mpi4py train.py",
        ] {
            assert_eq!(parse(line).launcher, Launcher::None, "{line}");
        }
    }

    #[test]
    fn launcher_options_are_parsed() {
        assert_eq!(parse("torchrun --nproc_per_node=2 train.py").procs(), Some("2"));
        assert_eq!(parse("torchrun --nproc-per-node gpu train.py").procs(), Some("gpu"));
        assert_eq!(parse("python train.py --nproc_per_node=2").procs(), None);
        let line = "torchrun --rdzv-backend=c10d --rdzv_endpoint=x:1 --master_addr $MASTER_ADDR --nnodes=$(N) train.py";
        assert_eq!(parse(line).meeting(), ["--rdzv-backend=c10d", "--rdzv_endpoint=x:1"]);
        for harmless in [
            "torchrun train.py",
            "torchrun --max-restarts=0 train.py",
            "torchrun --master_addr=$(MASTER_ADDR) train.py",
            "python train.py --rdzv_backend=c10d",
            "torchrun --log-dir=rdzv_logs train.py",
            "torchrun train.py --rdzv_backend=c10d",
            "sh -c torchrun --master_addr=$(MASTER_ADDR) --node_rank ${RANK:-0} train.py",
        ] {
            assert_eq!(parse(harmless).meeting(), Vec::<&str>::new(), "{harmless}");
        }
    }
}
