//! The variables of the gang, its framework and the job. The agent gets them as arguments (`--env=NAME=VALUE`), or
//! computes them for each attempt. The container's own environment has none of them, so that a pod's object stays
//! small.

use crate::attempt::Attempt;
use crate::install::replace;
use crate::run::expand::{Variables, expand};
use crate::variables::{given, variable};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// A file in the agent's state folder, which a shell reads to get the variables of the program.
const FILE: &str = "env";

/// All variables of an attempt's program, which take precedence over the container's environment.
pub fn for_attempt(attempt: &Attempt) -> Variables {
    with(given(), of_attempt(attempt))
}

/// The given variables may refer to those of the attempt, which take precedence.
fn with<'v>(given: impl Iterator<Item = (&'static str, &'v str)>, attempt: Variables) -> Variables {
    let expanded = |value: &str| String::from_utf8_lossy(&expand(value.as_bytes(), &attempt)).into_owned();
    let mut all: Variables = given.map(|(name, value)| (name, expanded(value))).collect();
    all.extend(attempt);
    all
}

/// The variables that change from attempt to attempt.
fn of_attempt(attempt: &Attempt) -> Variables {
    let step = attempt.resume_step.map(|step| step.to_string()).unwrap_or_default();
    let mut variables =
        Variables::from([("RESUME_FROM_CHECKPOINT", attempt.resume_from.clone()), ("RESUME_FROM_STEP", step)]);
    if let Some(digest) = &attempt.code {
        variables.insert("TRAININGJOB_CODE", digest.clone());
    }
    if let Some(number) = attempt.number {
        variables.insert("ATTEMPT", number.to_string());
    }
    if let Some(port) = attempt.master_port {
        variables.insert("MASTER_PORT", port.to_string());
        variables.insert("PET_MASTER_PORT", port.to_string());
    }
    if let Some(address) = attempt.master_ip.filter(|_| variable("PADDLE_MASTER").is_some()) {
        variables.insert("MASTER_IP", address.to_string());
    }
    if ["HYDRA_IFACE", "I_MPI_HYDRA_IFACE"].into_iter().any(|name| variable(name).is_some()) {
        variables.insert("POD_INTERFACE", interface().unwrap_or_else(|| "eth0".to_owned()));
    }
    if let Some(workers) = &attempt.workers {
        let number = |name| variable(name).and_then(|number| number.parse::<u64>().ok());
        let world = u64::from(workers.count) * number("NPROC_PER_NODE").unwrap_or(1);
        let count = workers.count.to_string();
        variables.extend([("NNODES", count.clone()), ("NUM_WORKERS", count), ("WORLD_SIZE", world.to_string())]);
        // For thousands of workers it is too long for programs that do not need it.
        if variable("TF_CONFIG").is_some() {
            variables.insert("TRAININGJOB_ADDRESSES", workers.addresses.clone());
        }
    }
    variables
}

/// The part of `variables` that the program gets. `$(NAME)` still stands for the values of withheld variables.
pub fn of_program(variables: &Variables, withheld: &[String]) -> Variables {
    let is_its_own = |name: &str| !withheld.iter().any(|withheld| withheld == name);
    variables.iter().filter(|(name, _)| is_its_own(name)).map(|(name, value)| (*name, value.clone())).collect()
}

/// The network interface that has the pod's address.
fn interface() -> Option<String> {
    let own: IpAddr = variable("POD_IP")?.parse().ok()?;
    let address = |interface: &InterfaceAddress| {
        let address = interface.address.as_ref()?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    getifaddrs().ok()?.find(|interface| address(interface) == Some(own)).map(|interface| interface.interface_name)
}

/// Writes the variables to `folder`, for shells that are opened in the container.
///
/// # Errors
/// Where the folder can't be written to.
pub fn leave(folder: &Path, variables: &Variables) -> io::Result<()> {
    let file = folder.join(FILE);
    let text = for_shell(&file, variables);
    replace(&file, text.as_bytes())
}

fn for_shell(file: &Path, variables: &Variables) -> String {
    let mut text = format!("# What the program has in its environment, for a shell: . {}\n", file.display());
    for (name, value) in variables.iter().filter(|(name, _)| is_shells(name)) {
        let _ = writeln!(text, "export {name}='{}'", value.replace('\'', r"'\''"));
    }
    text
}

/// Whether a shell can have a variable of that name.
fn is_shells(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(is_word) && !name.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::Workers;
    use proptest::prelude::*;
    use std::process::Command;

    #[test]
    fn attempt_variables_expand_in_and_override_given_ones() {
        let attempt = Attempt { number: Some(3), master_port: Some(29501), ..Attempt::default() };
        let given = [
            ("RANK", "1"),
            ("MODEL", "a$(RANK)b$(MODEL)"),
            ("JAX_COORDINATOR_ADDRESS", "x-0:$(MASTER_PORT)"),
            ("WANDB_NAME", "x-attempt-$(ATTEMPT)"),
            ("ESCAPED", "$$(ATTEMPT)"),
            ("ATTEMPT", "7"),
        ];
        let all = with(given.into_iter(), of_attempt(&attempt));
        let expected = [
            ("ATTEMPT", "3"),
            ("ESCAPED", "$(ATTEMPT)"),
            ("JAX_COORDINATOR_ADDRESS", "x-0:29501"),
            ("MASTER_PORT", "29501"),
            // Text of the user's stays as it is.
            ("MODEL", "a$(RANK)b$(MODEL)"),
            ("PET_MASTER_PORT", "29501"),
            ("RANK", "1"),
            ("RESUME_FROM_CHECKPOINT", ""),
            ("RESUME_FROM_STEP", ""),
            ("WANDB_NAME", "x-attempt-3"),
        ];
        assert_eq!(all.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn withheld_variables_are_expanded_but_not_exported() {
        let attempt = Attempt { master_port: Some(29501), ..Attempt::default() };
        let all = with([("MASTER_ADDR", "x-0"), ("AT", "x-0:$(MASTER_PORT)")].into_iter(), of_attempt(&attempt));
        let withheld = ["MASTER_ADDR", "MASTER_PORT", "PET_MASTER_PORT", "OTHER"].map(str::to_owned);
        let own = of_program(&all, &withheld);
        let names: Vec<&str> = own.keys().copied().collect();
        assert_eq!(names, ["AT", "RESUME_FROM_CHECKPOINT", "RESUME_FROM_STEP"]);
        assert_eq!(own["AT"], "x-0:29501");
        assert_eq!(expand(b"$(MASTER_ADDR):$(MASTER_PORT)", &all), b"x-0:29501");
        assert_eq!(of_program(&all, &[]), all);
    }

    #[test]
    fn elastic_attempt_exports_its_world_size() {
        let workers = Workers { count: 3, addresses: "[]".to_owned() };
        let all = of_attempt(&Attempt { workers: Some(workers), ..Attempt::default() });
        assert_eq!(["NNODES", "NUM_WORKERS", "WORLD_SIZE"].map(|name| all[name].as_str()), ["3"; 3]);
        assert!(!all.contains_key("TRAININGJOB_ADDRESSES"), "nobody wants it");
    }

    /// The environment of a shell after it has read the file.
    fn read_by_shell(variables: &Variables) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        leave(folder.path(), variables).unwrap();
        let script = r#". "$0/env" && printf '%s|' "$A" "${B-none}""#;
        let mut shell = Command::new("sh");
        shell.args(["-eu", "-c", script]).arg(folder.path()).env_remove("B").output().unwrap().stdout
    }

    #[test]
    fn shell_reads_variables_verbatim() {
        for value in ["", "a b", "it's", "''", "$HOME `id` $(id) \\", "two\nlines", "\"x\"", "é#!*"] {
            let variables = Variables::from([("A", value.to_owned()), ("B", "2".to_owned())]);
            assert_eq!(String::from_utf8(read_by_shell(&variables)).unwrap(), format!("{value}|2|"));
        }
        // What no shell can name is not in it, and is no command either.
        let odd = [("A", "1"), ("B-C", "2"), ("B=3; id", "3"), ("1B", "4"), ("", "5"), ("B C", "6")];
        let variables = odd.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        assert_eq!(String::from_utf8(read_by_shell(&variables)).unwrap(), "1|none|");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn shell_quoting_survives_any_value(value in "[^\0]*") {
            let variables = Variables::from([("A", value.clone())]);
            prop_assert_eq!(String::from_utf8(read_by_shell(&variables)).unwrap(), format!("{value}|none|"));
        }
    }
}
