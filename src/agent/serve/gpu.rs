//! What `nvidia-smi` says of the GPUs in this container, if it is there.

use crate::protocol::gpu::Gpu;
use jiff::Timestamp;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Between two looks: each costs a good part of a CPU second on a node with many GPUs.
const EVERY: Duration = Duration::from_secs(30);

/// The last figures, kept up to date by a thread.
#[derive(Clone, Default)]
pub struct Gpus(Arc<Mutex<Vec<Gpu>>>);

impl Gpus {
    /// Looks now and then, until this process ends. Without `nvidia-smi` or without a GPU there are none.
    pub fn watch() -> Self {
        let gpus = Self::default();
        let of_thread = gpus.clone();
        let _ = std::thread::Builder::new().name("gpus".to_owned()).spawn(move || {
            while let Some(seen) = look() {
                *of_thread.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
                std::thread::sleep(EVERY);
            }
        });
        gpus
    }

    pub fn last(&self) -> Vec<Gpu> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn look() -> Option<Vec<Gpu>> {
    const QUERY: &str = "--query-gpu=index,uuid,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu";
    let mut command = Command::new("nvidia-smi");
    command.args([QUERY, "--format=csv,noheader,nounits"]);
    // Not waited for: the supervisor reaps every child. One that hangs in the driver leaves the last figures standing.
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut text = String::new();
    child.stdout.take()?.take(1024 * 1024).read_to_string(&mut text).ok()?;
    Some(parse(&text, crate::agent::now())).filter(|gpus| !gpus.is_empty())
}

fn parse(csv: &str, time: Timestamp) -> Vec<Gpu> {
    const MIB: f64 = 1024.0 * 1024.0;
    let gpu = |line: &str| {
        let mut fields = line.split(',').map(str::trim);
        let index = fields.next()?.parse().ok()?;
        let uuid = fields.next()?.to_owned();
        // "[N/A]", "[Not Supported]"
        let mut number = || fields.next()?.parse::<f64>().ok();
        Some(Gpu {
            index,
            uuid,
            utilization_percent: number(),
            memory_used_bytes: number().map(|mib| mib * MIB),
            memory_total_bytes: number().map(|mib| mib * MIB),
            power_watts: number(),
            temperature_celsius: number(),
            time,
        })
    };
    csv.lines().filter_map(gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_what_is_not_supported() {
        let csv = "0, GPU-11, 97, 40000, 81559, 612.34, 61\n1, GPU-22, [N/A], 1024, 81559, [Not Supported], 33\n";
        let gpus = parse(csv, Timestamp::UNIX_EPOCH);
        assert_eq!(gpus.len(), 2);
        assert_eq!((gpus[0].utilization_percent, gpus[0].power_watts), (Some(97.0), Some(612.34)));
        assert_eq!((gpus[1].utilization_percent, gpus[1].power_watts), (None, None));
        assert_eq!((gpus[1].memory_used_bytes, gpus[1].temperature_celsius), (Some(1_073_741_824.0), Some(33.0)));
        assert_eq!(parse("No devices were found\n", Timestamp::UNIX_EPOCH), []);
    }
}
