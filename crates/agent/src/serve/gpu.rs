//! The figures of `nvidia-smi` for the GPUs in this container, if it is installed.

use crate::panics::catch_parser_panic;
use crate::run::descendants::mark_as_helper;
use jiff::Timestamp;
use parking_lot::Mutex;
use protocol::gpu::Gpu;
use protocol::report::GpuMemory;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The program that reads the GPUs. Its runs go by this name.
pub const NVIDIA_SMI: &str = "nvidia-smi";
/// Interval between two runs, because each takes a good part of a CPU second on a node with many GPUs.
const EVERY: Duration = Duration::from_secs(30);
/// Highest age of figures. A GPU counts as lost when two runs in a row have missed it, because one run may be slow, or
/// be ended with the program.
const FRESH: Duration = Duration::from_secs(75);

/// The last figures, kept up to date by a thread.
#[derive(Clone, Default)]
pub struct Gpus(Arc<Mutex<GpuHistory>>);

impl Gpus {
    /// Runs `nvidia-smi` regularly until this process ends. If `nvidia-smi` does not exist, there are no GPUs and no
    /// further runs.
    ///
    /// Other errors do not stop the runs. When a GPU dies, `nvidia-smi` omits it, prints nothing, or hangs in the
    /// driver. Then the earlier figures grow old.
    pub fn watch() -> Self {
        let gpus = Self::default();
        let of_thread = gpus.clone();
        let _ = std::thread::Builder::new().name("gpus".to_owned()).spawn(move || {
            loop {
                match look() {
                    Ok(text) => {
                        catch_parser_panic(|| of_thread.0.lock().take_in(parse(&text, crate::now()), Instant::now()));
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                    Err(_) => {}
                }
                std::thread::sleep(EVERY);
            }
        });
        gpus
    }

    /// The GPU whose memory was fullest in the last figures from before `time`.
    pub fn fullest_before(&self, time: Timestamp) -> Option<GpuMemory> {
        self.0.lock().fullest_before(time)
    }

    /// The GPUs that are present, and those that were and are missing now, with their last figures.
    pub fn now(&self) -> (Vec<Gpu>, Vec<Gpu>) {
        self.0.lock().at(Instant::now())
    }
}

/// All GPUs that have been seen so far, by index and UUID.
#[derive(Default)]
struct GpuHistory(BTreeMap<(u32, String), GpuReadings>);

struct GpuReadings {
    last: Gpu,
    /// When `last` was read.
    at: Instant,
    /// The figures of the run before the last one.
    earlier: Option<Gpu>,
}

impl GpuHistory {
    fn take_in(&mut self, answer: Vec<Gpu>, now: Instant) {
        for gpu in answer {
            let key = (gpu.index, gpu.uuid.clone());
            let earlier = self.0.remove(&key).map(|seen| seen.last);
            self.0.insert(key, GpuReadings { last: gpu, at: now, earlier });
        }
    }

    fn at(&self, now: Instant) -> (Vec<Gpu>, Vec<Gpu>) {
        let (fresh, old): (Vec<_>, Vec<_>) =
            self.0.values().partition(|seen| now.saturating_duration_since(seen.at) <= FRESH);
        let gpus = |known: Vec<&GpuReadings>| known.into_iter().map(|seen| seen.last.clone()).collect();
        (gpus(fresh), gpus(old))
    }

    fn fullest_before(&self, time: Timestamp) -> Option<GpuMemory> {
        let memory = |gpu: &Gpu| {
            let (used, total) = (gpu.memory_used_bytes?, gpu.memory_total_bytes.filter(|total| *total > 0.0)?);
            Some(GpuMemory { index: gpu.index, used, total, time: gpu.time })
        };
        let before = |seen: &GpuReadings| {
            let looks = [Some(&seen.last), seen.earlier.as_ref()];
            looks.into_iter().flatten().find(|gpu| gpu.time <= time).and_then(memory)
        };
        let fullest = |a: &GpuMemory, b: &GpuMemory| (a.used / a.total).total_cmp(&(b.used / b.total));
        self.0.values().filter_map(before).max_by(fullest)
    }
}

/// The output of `nvidia-smi`.
fn look() -> io::Result<String> {
    const QUERY: &str = "--query-gpu=index,uuid,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu";
    let mut command = Command::new(NVIDIA_SMI);
    command.args([QUERY, "--format=csv,noheader,nounits"]);
    // Not waited for here, because the loop of the container reaps every child.
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    mark_as_helper(child.id());
    let mut text = String::new();
    child.stdout.ok_or(io::ErrorKind::BrokenPipe)?.take(1024 * 1024).read_to_string(&mut text)?;
    Ok(text)
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
    fn unsupported_gpu_figures_are_omitted() {
        let csv = "0, GPU-11, 97, 40000, 81559, 612.34, 61\n1, GPU-22, [N/A], 1024, 81559, [Not Supported], 33\n";
        let gpus = parse(csv, Timestamp::UNIX_EPOCH);
        assert_eq!(gpus.len(), 2);
        assert_eq!((gpus[0].utilization_percent, gpus[0].power_watts), (Some(97.0), Some(612.34)));
        assert_eq!((gpus[1].utilization_percent, gpus[1].power_watts), (None, None));
        assert_eq!((gpus[1].memory_used_bytes, gpus[1].temperature_celsius), (Some(1_073_741_824.0), Some(33.0)));
        assert_eq!(parse("No devices were found\n", Timestamp::UNIX_EPOCH), []);
    }

    #[test]
    fn fullest_gpu_before_an_out_of_memory_error_is_found() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut known = GpuHistory::default();
        let mut look = |used: [u32; 2], second| {
            let csv = format!("0, GPU-1, 97, {}, 81559, 612, 61\n1, GPU-2, 97, {}, 81559, 612, 61\n", used[0], used[1]);
            known.take_in(parse(&csv, at(second)), Instant::now());
        };
        look([20_000, 10_000], 30);
        look([30_000, 80_000], 60);
        look([0, 0], 90);
        let found = |second| known.fullest_before(at(second)).map(|gpu| (gpu.index, gpu.used / 1_048_576.0, gpu.time));
        assert_eq!(found(70), Some((1, 80_000.0, at(60))), "the program is gone at the last look");
        assert_eq!(found(95).map(|(_, used, time)| (used, time)), Some((0.0, at(90))));
        assert_eq!(found(59), None, "too long ago to be remembered");
        known.take_in(
            parse("0, GPU-1, 97, [N/A], 81559, 612, 61\n1, GPU-2, 97, 1, 0, 6, 61\n", at(100)),
            Instant::now(),
        );
        known.take_in(
            parse("0, GPU-1, 97, [N/A], 81559, 612, 61\n1, GPU-2, 97, 1, 0, 6, 61\n", at(101)),
            Instant::now(),
        );
        assert_eq!(known.fullest_before(at(200)), None);
    }

    #[test]
    fn gpu_no_longer_seen_is_reported_as_lost() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut known = GpuHistory::default();
        let both = "0, GPU-11, 97, 1, 2, 600, 61\n1, GPU-22, 98, 1, 2, 600, 61\n";
        let first = "0, GPU-11, 99, 1, 2, 600, 61\n";
        let broken = "Unable to determine the device handle for GPU1: 0000:41:00.0: Unknown Error\n";
        let mut look = |text: &str, seconds| {
            known.take_in(parse(text, Timestamp::from_second(seconds as i64).unwrap()), after(seconds));
            let (there, lost) = known.at(after(seconds));
            let figures = |gpus: Vec<Gpu>| {
                gpus.iter()
                    .map(|gpu| (gpu.index, gpu.utilization_percent.unwrap(), gpu.time.as_second()))
                    .collect::<Vec<_>>()
            };
            (figures(there), figures(lost))
        };
        assert_eq!(look(both, 0), (vec![(0, 97.0, 0), (1, 98.0, 0)], vec![]));
        assert_eq!(look("", 30), (vec![(0, 97.0, 0), (1, 98.0, 0)], vec![]), "one look may fail");
        assert_eq!(look(first, 60), (vec![(0, 99.0, 60), (1, 98.0, 0)], vec![]), "with the time of the figures");
        assert_eq!(look(first, 90), (vec![(0, 99.0, 90)], vec![(1, 98.0, 0)]), "it is told as it last was");
        assert_eq!(look(broken, 200), (vec![], vec![(0, 99.0, 90), (1, 98.0, 0)]));
        assert_eq!(look(both, 230), (vec![(0, 97.0, 230), (1, 98.0, 230)], vec![]), "it has come back");
    }
}
