//! When a program seems to hang. Pure: looks in, findings out.
//!
//! Only observed time counts. While the agent itself stands still, with its machine or its container, nothing ages.

use std::collections::BTreeMap;
use std::time::Duration;

/// Share of a core below which a process counts as asleep. Threads that only wake to poll use as much.
const ASLEEP: f64 = 0.05;
/// How long a process has to be stopped before that is reported. A momentary stop is harmless.
const STOPPED: Duration = Duration::from_secs(10);
/// Number of readings of a GPU that all have to be the same.
const READINGS: u32 = 3;
/// Difference in utilisation that counts as the same, in percent of the time.
const SAME_USE: f64 = 1.0;
/// Difference in power that counts as the same, as a share. Computing shows in it, while a waiting kernel "uses" 100 %.
const SAME_POWER: f64 = 0.03;

/// Difference between two readings of a GPU that visibly computes. Use differs as a share of the time, power as a share
/// of itself. A waiting kernel varies less.
const VARIES: f64 = 0.1;

/// Bytes per second above which a process counts as working. A process that waits and polls moves less.
const MOVES: f64 = 64.0 * 1024.0;
/// Utilisation above which a GPU may compute, in percent of the time, even if it always shows the same.
const IN_USE: f64 = 5.0;

/// An observation of a program at one time.
#[derive(Clone, Debug, Default)]
pub struct ProgramSample {
    /// Time since the previous look.
    pub since: Duration,
    /// The last epoch and step that were reported.
    pub at: Option<ReportedPosition>,
    /// All of its steps are done, and its further work has none.
    pub is_over: bool,
    /// Bytes that it has printed.
    pub printed: u64,
    /// When a file in the folder of checkpoints was last written, if the folder was looked at.
    pub saved: Option<u64>,
    /// Its processes.
    pub processes: Vec<Process>,
    /// Its GPUs, by index.
    pub gpus: Vec<Gpu>,
}

/// The progress that a program reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReportedPosition {
    pub epoch: Option<f64>,
    pub step: Option<f64>,
}

/// A process at one time.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub pid: i32,
    /// Start time, which distinguishes it from an earlier process with the same PID.
    pub started: u64,
    /// Seconds of CPU time so far.
    pub cpu: f64,
    /// Bytes that it has read and written so far in files, pipes and sockets, or 0 if that is unknown.
    pub moved: u64,
    pub is_stopped: bool,
}

/// A reading of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Gpu {
    pub index: u32,
    /// Identifies the reading, and differs between readings.
    pub reading: i64,
    pub utilization: Option<f64>,
    pub power: Option<f64>,
}

/// Signs that a program hangs.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a sign of its own")]
pub struct Signs {
    /// How long it has made no step.
    pub stalled: Option<Duration>,
    /// How long it has shown no sign of life, if it reports no steps, or none any more.
    pub idle: Option<Duration>,
    /// It has printed nothing, for as long.
    pub is_silent: bool,
    /// None of its processes has computed, for as long.
    pub is_asleep: bool,
    /// Its GPUs have always shown the same, for as long.
    pub gpus_are_flat: bool,
    /// A GPU computes: its use or power has varied within that time.
    pub gpus_compute: bool,
    /// Processes that a signal has stopped.
    pub stopped: Vec<i32>,
}

impl Signs {
    /// Whether there is anything to report.
    pub fn has_any(&self) -> bool {
        self.stalled.is_some() || self.idle.is_some() || !self.stopped.is_empty()
    }

    /// Whether a second sign agrees that it makes no steps, or all signs agree that it does nothing.
    pub fn agree(&self) -> bool {
        // A program that prints only its steps falls silent when they stop. That is one sign.
        let is_silent = self.is_silent && !self.gpus_compute;
        let second = is_silent || self.is_asleep || self.gpus_are_flat || !self.stopped.is_empty();
        self.idle.is_some() || (self.stalled.is_some() && second)
    }
}

/// Watches one run of a program.
#[derive(Debug)]
pub struct Watch {
    timeout: Duration,
    idle_timeout: Duration,
    now: Duration,
    at: Option<ReportedPosition>,
    /// When it last reported other progress, or wrote a file into the folder of checkpoints.
    progressed: Duration,
    saved: Option<u64>,
    printed: u64,
    heard: Duration,
    computed: Duration,
    /// When a process last moved data, or a GPU was in use.
    worked: Duration,
    /// What each process has used, and since when it is stopped.
    processes: BTreeMap<(i32, u64), Used>,
    gpus: BTreeMap<u32, ConstantGpu>,
    is_over: bool,
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    cpu: f64,
    moved: u64,
    stopped: Option<Duration>,
}

/// A GPU that always shows the same.
#[derive(Clone, Copy, Debug)]
struct ConstantGpu {
    first: Gpu,
    since: Duration,
    last: Gpu,
    readings: u32,
    /// When two consecutive readings last differed much.
    varied: Option<Duration>,
}

impl Watch {
    /// Starts to watch a program that has just been started.
    pub fn new(timeout: Duration, idle_timeout: Duration) -> Self {
        Self {
            timeout,
            idle_timeout,
            now: Duration::ZERO,
            at: None,
            progressed: Duration::ZERO,
            saved: None,
            printed: 0,
            heard: Duration::ZERO,
            computed: Duration::ZERO,
            worked: Duration::ZERO,
            processes: BTreeMap::new(),
            gpus: BTreeMap::new(),
            is_over: false,
        }
    }

    /// Takes in one look.
    pub fn take_in(&mut self, look: &ProgramSample) -> Signs {
        self.now += look.since;
        self.is_over = look.is_over;
        if look.at.is_some() && look.at != self.at {
            (self.at, self.progressed) = (look.at, self.now);
        }
        // The first look at the folder shows only what was there before.
        if look.saved.is_some() && look.saved != self.saved {
            if self.saved.is_some() {
                self.progressed = self.now;
            }
            self.saved = look.saved;
        }
        if look.printed != self.printed {
            (self.printed, self.heard) = (look.printed, self.now);
        }
        self.take_in_processes(look);
        self.take_in_gpus(look);
        self.signs()
    }

    /// Whether it may soon count as stalled or idle, so that the folder of checkpoints is worth a look.
    pub fn may_stall(&self) -> bool {
        match self.has_steps() {
            true => self.is_for(self.progressed, self.timeout / 2),
            false => self.is_for(self.last_sign(), self.idle_timeout / 2),
        }
    }

    /// When the last sign of life was seen.
    fn last_sign(&self) -> Duration {
        self.progressed.max(self.heard).max(self.computed).max(self.worked)
    }

    /// Whether it looks as if it waits for others, even if it reports no steps itself.
    pub fn is_quiet(&self) -> bool {
        let half = self.timeout / 2;
        let is_silent = self.has_steps() && self.is_for(self.heard, half);
        // The gang may be given up as idle long before half of the other time-out has passed.
        let is_idle = !self.has_steps() && self.may_stall();
        is_silent
            || is_idle
            || self.is_for(self.computed, half)
            || self.has_flat_gpus(half)
            || !self.stopped().is_empty()
    }

    /// The progress that it reports.
    pub fn at(&self) -> Option<ReportedPosition> {
        self.at
    }

    fn has_steps(&self) -> bool {
        self.at.is_some() && !self.is_over
    }

    fn is_for(&self, since: Duration, time: Duration) -> bool {
        self.now.saturating_sub(since) >= time
    }

    fn signs(&self) -> Signs {
        let stalled = self.has_steps() && self.is_for(self.progressed, self.timeout);
        let idle = !self.has_steps() && self.is_for(self.last_sign(), self.idle_timeout);
        Signs {
            stalled: stalled.then(|| self.now.saturating_sub(self.progressed)),
            idle: idle.then(|| self.now.saturating_sub(self.last_sign())),
            is_silent: self.is_for(self.heard, self.timeout),
            is_asleep: self.is_for(self.computed, self.timeout),
            gpus_are_flat: self.has_flat_gpus(self.timeout),
            gpus_compute: self.gpus.values().filter_map(|gpu| gpu.varied).any(|at| !self.is_for(at, self.timeout)),
            stopped: self.stopped(),
        }
    }

    fn stopped(&self) -> Vec<i32> {
        let is_long = |since: &Option<Duration>| since.is_some_and(|since| self.is_for(since, STOPPED));
        self.processes.iter().filter(|(_, used)| is_long(&used.stopped)).map(|((pid, _), _)| *pid).collect()
    }

    fn take_in_processes(&mut self, look: &ProgramSample) {
        let mut processes = BTreeMap::new();
        for process in &look.processes {
            let key = (process.pid, process.started);
            // All that a new process has used so far is new.
            let known = self.processes.get(&key).copied().unwrap_or_default();
            let seconds = look.since.as_secs_f64();
            if process.cpu - known.cpu > ASLEEP * seconds {
                self.computed = self.now;
            }
            if number(process.moved.saturating_sub(known.moved)) > MOVES * seconds {
                self.worked = self.now;
            }
            let stopped = process.is_stopped.then(|| known.stopped.unwrap_or(self.now));
            processes.insert(key, Used { cpu: process.cpu, moved: process.moved, stopped });
        }
        self.processes = processes;
    }

    fn take_in_gpus(&mut self, look: &ProgramSample) {
        self.gpus.retain(|index, _| look.gpus.iter().any(|gpu| gpu.index == *index));
        if look.gpus.iter().any(|gpu| gpu.utilization.is_none_or(|used| used > IN_USE)) {
            self.worked = self.now;
        }
        for gpu in &look.gpus {
            let new = ConstantGpu { first: *gpu, since: self.now, last: *gpu, readings: 1, varied: None };
            let flat = self.gpus.entry(gpu.index).or_insert(new);
            if flat.last.reading == gpu.reading {
                continue;
            }
            let varied = if varies(&flat.last, gpu) { Some(self.now) } else { flat.varied };
            *flat = if is_same(&flat.first, gpu) {
                ConstantGpu { last: *gpu, readings: flat.readings + 1, varied, ..*flat }
            } else {
                ConstantGpu { varied, ..new }
            };
        }
    }

    fn has_flat_gpus(&self, time: Duration) -> bool {
        let is_flat = |flat: &ConstantGpu| flat.readings >= READINGS && self.is_for(flat.since, time);
        !self.gpus.is_empty() && self.gpus.values().all(is_flat)
    }
}

#[expect(clippy::cast_precision_loss, reason = "nobody moves so many bytes between two looks")]
fn number(bytes: u64) -> f64 {
    bytes as f64
}

/// Whether two readings of a GPU show the same. Without a utilisation they never do.
fn is_same(a: &Gpu, b: &Gpu) -> bool {
    let (Some(used), Some(uses)) = (a.utilization, b.utilization) else { return false };
    let power = match (a.power, b.power) {
        (Some(drew), Some(draws)) => (drew - draws).abs() <= SAME_POWER * drew.max(draws),
        _ => true,
    };
    (used - uses).abs() <= SAME_USE && power
}

/// Whether two readings of a GPU differ more than those of a waiting GPU.
fn varies(a: &Gpu, b: &Gpu) -> bool {
    let used = a.utilization.zip(b.utilization).is_some_and(|(used, uses)| (used - uses).abs() > 100.0 * VARIES);
    used || a.power.zip(b.power).is_some_and(|(drew, draws)| (drew - draws).abs() > VARIES * drew.max(draws))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_secs(5);
    const TIMEOUT: Duration = Duration::from_secs(60);
    const IDLE: Duration = Duration::from_secs(600);
    /// Number of looks until a program that does nothing at all is idle.
    const IDLE_LOOKS: u32 = 120;

    /// A program, looked at every five seconds.
    struct Scene {
        watch: Watch,
        look: ProgramSample,
        busy: f64,
    }

    impl Scene {
        fn new() -> Self {
            let process = Process { pid: 57, started: 1, cpu: 0.0, moved: 0, is_stopped: false };
            let look = ProgramSample { since: TICK, processes: vec![process], ..ProgramSample::default() };
            Self { watch: Watch::new(TIMEOUT, IDLE), look, busy: 1.0 }
        }

        /// A program that has reported a step.
        fn stepping() -> Self {
            let mut scene = Self::new();
            scene.step(1.0);
            scene.pass(1);
            scene
        }

        fn step(&mut self, step: f64) {
            self.look.at = Some(ReportedPosition { epoch: None, step: Some(step) });
        }

        fn pass(&mut self, ticks: u32) -> Signs {
            let mut signs = Signs::default();
            for _ in 0..ticks {
                let used = self.busy * self.look.since.as_secs_f64();
                self.look.processes.iter_mut().filter(|p| !p.is_stopped).for_each(|p| p.cpu += used);
                signs = self.watch.take_in(&self.look);
            }
            signs
        }
    }

    #[test]
    fn one_sign_is_reported_and_two_are_conclusive() {
        let mut scene = Scene::stepping();
        scene.look.printed = 10;
        assert!(!scene.pass(11).has_any(), "not yet");
        scene.look.printed = 20;
        let signs = scene.pass(1);
        assert_eq!(signs.stalled, Some(TIMEOUT));
        assert!(signs.has_any() && !signs.agree(), "it prints and computes: {signs:?}");
        let signs = scene.pass(12);
        assert!(signs.agree() && signs.is_silent && !signs.is_asleep, "{signs:?}");
        scene.step(2.0);
        assert_eq!(scene.pass(1).stalled, None);
    }

    #[test]
    fn program_without_steps_is_idle_without_signs_of_life() {
        let mut scene = Scene::new();
        scene.busy = 0.0;
        let signs = scene.pass(IDLE_LOOKS - 1);
        assert!(!signs.has_any() && signs.is_silent && signs.is_asleep, "{signs:?}");
        assert!(scene.watch.is_quiet(), "it may be waiting for others");
        let signs = scene.pass(1);
        assert!(signs.agree() && signs.idle == Some(IDLE) && signs.stalled.is_none(), "{signs:?}");
        scene.look.printed += 1;
        assert!(!scene.pass(1).has_any());
    }

    /// A worker is looked at when another one's agent has found the gang idle, because it may be the one to blame.
    #[test]
    fn idle_worker_is_quiet_regardless_of_the_step_timeout() {
        let (mut scene, hour) = (Scene::new(), Duration::from_secs(3600));
        scene.watch = Watch::new(hour, TIMEOUT);
        scene.busy = 0.0;
        scene.pass(5);
        assert!(!scene.watch.is_quiet());
        assert!(scene.pass(7).idle.is_some() && scene.watch.is_quiet());
        scene.look.printed += 1;
        scene.pass(1);
        assert!(!scene.watch.is_quiet());
    }

    #[test]
    fn idle_rule_applies_again_after_the_last_step() {
        let mut scene = Scene::stepping();
        scene.look.is_over = true;
        assert!(!scene.pass(3 * IDLE_LOOKS).has_any(), "it computes");
        scene.busy = 0.0;
        assert!(!scene.pass(IDLE_LOOKS - 1).has_any());
        assert!(scene.pass(1).agree());
    }

    /// A program that reports steps has a limit for one step.
    #[test]
    fn program_with_steps_is_stalled_rather_than_idle() {
        let mut scene = Scene::stepping();
        scene.busy = 0.0;
        let signs = scene.pass(3 * IDLE_LOOKS);
        assert!(signs.agree() && signs.stalled.is_some() && signs.idle.is_none(), "{signs:?}");
    }

    /// What a program does between two looks. The argument is the number of the look.
    type Work = Box<dyn FnMut(u64, &mut Scene)>;

    /// A tokenizer, a download, a loop on the device, a file that is written: each prints nothing for hours.
    #[test]
    fn silently_working_program_is_never_idle() {
        let works = |what: &str, mut work: Work| {
            let mut scene = Scene::new();
            scene.busy = 0.0;
            for look in 0..u64::from(20 * IDLE_LOOKS) {
                work(look, &mut scene);
                assert!(!scene.pass(1).has_any(), "{what}, look {look}");
            }
        };
        let gpu = |look: u64, utilization| {
            let reading = look.try_into().unwrap();
            vec![Gpu { index: 0, reading, utilization, power: Some(700.0) }]
        };
        works("it computes", Box::new(|_, scene| scene.busy = 0.06));
        works("it computes now and then", Box::new(|look, scene| scene.busy = if look % 100 == 0 { 1.0 } else { 0.0 }));
        works("it reads", Box::new(|_, scene| scene.look.processes[0].moved += 5 * 70_000));
        works("it prints now and then", Box::new(|look, scene| scene.look.printed = look / 100));
        works("its GPU is used", Box::new(move |look, scene| scene.look.gpus = gpu(look, Some(100.0))));
        works("its GPU tells no use", Box::new(move |look, scene| scene.look.gpus = gpu(look, None)));
        works("it saves", Box::new(|look, scene| scene.look.saved = scene.watch.may_stall().then_some(look / 50)));
        works(
            "a child of it does",
            Box::new(|look, scene| {
                scene.look.processes.truncate(1);
                let pid = 100 + i32::try_from(look).unwrap();
                scene.look.processes.push(Process { pid, started: look, cpu: 0.5, moved: 0, is_stopped: false });
            }),
        );
    }

    #[test]
    fn heartbeat_traffic_does_not_count_as_work() {
        let mut scene = Scene::new();
        scene.busy = 0.01;
        let idle = |scene: &mut Scene| {
            let mut signs = Signs::default();
            for look in 0..IDLE_LOOKS {
                scene.look.processes[0].moved += 5 * 1000;
                scene.look.gpus =
                    vec![Gpu { index: 0, reading: look.into(), utilization: Some(0.0), power: Some(70.0) }];
                signs = scene.pass(1);
            }
            signs
        };
        assert!(idle(&mut scene).agree());
    }

    #[test]
    fn sleep_is_a_sign_despite_brief_wakeups() {
        let mut scene = Scene::stepping();
        scene.busy = 0.02;
        let mut printed = 0;
        for _ in 0..20 {
            printed += 1;
            scene.look.printed = printed;
            scene.pass(1);
        }
        let signs = scene.pass(1);
        assert!(signs.agree() && signs.is_asleep && !signs.is_silent, "{signs:?}");
        scene.busy = 0.5;
        assert!(!scene.pass(1).is_asleep);
    }

    #[test]
    fn ongoing_save_is_a_sign_of_life() {
        let mut scene = Scene::stepping();
        scene.pass(6);
        assert!(scene.watch.may_stall());
        scene.look.saved = Some(7);
        assert!(scene.pass(6).has_any(), "what lay there before is none");
        scene.look.saved = Some(8);
        assert!(!scene.pass(11).has_any());
        assert!(scene.pass(2).has_any());
    }

    #[test]
    fn stopped_process_alone_is_reported_but_not_conclusive() {
        let mut scene = Scene::stepping();
        scene.look.processes.push(Process { pid: 58, started: 1, cpu: 0.0, moved: 0, is_stopped: true });
        assert!(!scene.pass(2).has_any(), "for a moment");
        let mut printed = 0;
        let mut tick = |scene: &mut Scene| {
            printed += 1;
            scene.look.printed = printed;
            scene.pass(1)
        };
        let signs = tick(&mut scene);
        assert_eq!((signs.stopped.as_slice(), signs.has_any(), signs.agree()), (&[58][..], true, false));
        for step in 2..30 {
            scene.step(f64::from(step));
            assert!(!tick(&mut scene).agree(), "the others go on");
        }
        let mut signs = Signs::default();
        for _ in 0..12 {
            signs = tick(&mut scene);
        }
        assert!(signs.agree() && !signs.is_silent && !signs.is_asleep, "{signs:?}");
        scene.look.processes[1].is_stopped = false;
        assert!(!tick(&mut scene).agree());
    }

    #[test]
    fn reused_pid_is_a_different_process() {
        let mut scene = Scene::stepping();
        scene.look.processes[0].is_stopped = true;
        scene.pass(1);
        scene.look.processes[0].started = 2;
        assert!(scene.pass(2).stopped.is_empty());
        assert_eq!(scene.pass(1).stopped, [57]);
    }

    #[test]
    fn constant_gpu_readings_are_a_sign_of_a_hang() {
        let gpu = |reading, utilization, power| Gpu { index: 0, reading, utilization, power };
        let flat = |powers: &[Option<f64>]| {
            let mut scene = Scene::stepping();
            let mut signs = Signs::default();
            for (reading, power) in (0..).zip(powers) {
                scene.look.gpus = vec![gpu(reading, Some(100.0), *power)];
                scene.look.printed += 1;
                signs = scene.pass(6);
            }
            (signs.stalled.is_some(), signs.agree())
        };
        assert_eq!(flat(&[Some(100.0), Some(101.0), Some(100.5), Some(101.0)]), (true, true));
        assert_eq!(flat(&[Some(400.0), Some(500.0), Some(450.0), Some(510.0)]), (true, false), "it computes");
        assert_eq!(flat(&[None; 4]), (true, true));
        let mut scene = Scene::stepping();
        scene.look.gpus = vec![gpu(1, Some(100.0), None)];
        for printed in 1..30 {
            scene.look.printed = printed;
            assert!(!scene.pass(1).agree(), "one reading, however old, tells nothing");
        }
    }

    /// The program logs a step every few minutes and nothing else, while its GPU computes.
    #[test]
    fn silence_is_not_a_second_sign_while_a_gpu_computes() {
        let mut scene = Scene::stepping();
        let (mut signs, mut reading) = (Signs::default(), 0);
        let mut look = |scene: &mut Scene, power: f64| {
            reading += 1;
            scene.look.gpus = vec![Gpu { index: 0, reading, utilization: Some(100.0), power: Some(power) }];
            scene.pass(6)
        };
        for power in [400.0, 510.0, 420.0, 500.0] {
            signs = look(&mut scene, power);
        }
        assert!(signs.stalled.is_some() && signs.is_silent && !signs.agree(), "{signs:?}");
        // The program hangs. The waiting kernel draws less power, and always about as much.
        for power in [120.0, 125.0, 121.0, 126.0] {
            signs = look(&mut scene, power);
        }
        assert!(signs.agree(), "{signs:?}");
    }

    /// A sleeping machine observes nothing. The caller passes that as `since`.
    #[test]
    fn time_without_observation_does_not_count() {
        let mut scene = Scene::stepping();
        scene.look.since = Duration::ZERO;
        assert!(!scene.pass(1000).has_any());
    }
}
