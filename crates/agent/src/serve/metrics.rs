//! The status in Prometheus' text format.
use exposition::{labels, seconds};
use protocol::agent_status::AgentStatus;
use protocol::checkpoints::Checkpoints;
use protocol::gpu::Gpu;
use protocol::progress::Reading;
use protocol::report::Phase;

type Figure = (&'static str, &'static str, fn(&Gpu) -> Option<f64>);

/// The figures of each GPU.
const FIGURES: [Figure; 5] = [
    ("gpu_utilization_percent", "Share of time in which the GPU computes.", |gpu| gpu.utilization_percent),
    ("gpu_memory_used_bytes", "Memory of the GPU in use.", |gpu| gpu.memory_used_bytes),
    ("gpu_memory_total_bytes", "Memory of the GPU.", |gpu| gpu.memory_total_bytes),
    ("gpu_power_watts", "Power that the GPU draws.", |gpu| gpu.power_watts),
    ("gpu_temperature_celsius", "Temperature of the GPU.", |gpu| gpu.temperature_celsius),
];

/// Renders `status` as metrics. Values that were never reported are omitted.
pub fn render(status: &AgentStatus) -> String {
    let mut page = Page::new(status);
    let (report, progress) = (&status.report, &status.progress);
    page.family("process_state", "gauge", "1 for the state that the program is in.");
    for phase in [Phase::Starting, Phase::Running, Phase::Exited] {
        page.sample(&[("state", &format!("{phase:?}"))], if report.phase == phase { 1.0 } else { 0.0 });
    }
    page.single("attempt", "gauge", "The gang's attempt, from 1.", Some(f64::from(report.attempt)));
    page.single("start_time_seconds", "gauge", "When the agent started.", report.started_at.map(seconds));
    page.single("progress_percent", "gauge", "Of steps if their total is known, else of epochs.", status.percent);
    let value = |reading: Option<Reading>| reading.map(|reading| reading.value);
    page.single("epoch", "gauge", "As the program counts them.", value(progress.epoch));
    page.single("epochs", "gauge", "Epochs in all.", value(progress.epochs));
    page.single("step", "gauge", "Step of the whole run.", value(progress.step));
    page.single("steps", "gauge", "Steps in all.", value(progress.steps));
    page.single(
        "remaining_seconds",
        "gauge",
        "Time that remains, as the program reports it.",
        value(progress.eta_seconds),
    );
    page.family(
        "metric",
        "gauge",
        "What the program reports, by name: loss, accuracy, learningRate, throughput, others.",
    );
    for (name, reading) in &progress.metrics {
        page.sample(&[("name", name)], reading.value);
    }
    let last = progress.last().map(|reading| seconds(reading.time));
    page.single("last_progress_timestamp_seconds", "gauge", "When the program last reported anything.", last);
    let stalls = Some(if status.stall.as_ref().is_some_and(|stall| stall.hangs) { 1.0 } else { 0.0 });
    page.single("hang_suspected", "gauge", "1 while two signs agree that the program hangs.", stalls);
    page.family("signs_total", "counter", "Lines of libraries that report what ends programs, by kind.");
    for sign in &report.error_patterns {
        page.sample(&[("kind", &format!("{:?}", sign.kind))], sign.count as f64);
    }
    page.single("oom_kills_total", "counter", "Processes killed for lack of memory.", Some(report.oom_kills as f64));
    page.single("cpu_seconds_total", "counter", "CPU time of the program.", Some(status.usage.cpu_seconds));
    if let Some(checkpoints) = &status.checkpoints {
        page.checkpoints(checkpoints);
    }
    let resident = Some(status.usage.resident_bytes as f64);
    page.single(
        "resident_memory_bytes",
        "gauge",
        "Memory of the program, shared pages counted for each process.",
        resident,
    );
    let unparsed = Some(status.unparsed_lines as f64);
    page.single("unparsed_lines_total", "counter", "Lines passed on that came too fast to be parsed.", unparsed);
    page.single("agent_cpu_seconds_total", "counter", "CPU time of the agent.", Some(status.agent_usage.cpu_seconds));
    let resident = Some(status.agent_usage.resident_bytes as f64);
    page.single("agent_resident_memory_bytes", "gauge", "Memory of the agent.", resident);
    for (name, help, figure) in FIGURES {
        page.family(name, "gauge", help);
        for gpu in &status.gpus {
            if let Some(value) = figure(gpu) {
                page.sample(&[("gpu", &gpu.index.to_string()), ("uuid", &gpu.uuid)], value);
            }
        }
    }
    page.family("gpu_lost", "gauge", "1 for a GPU that nvidia-smi reported before and no longer reports.");
    for gpu in &status.lost_gpus {
        page.sample(&[("gpu", &gpu.index.to_string()), ("uuid", &gpu.uuid)], 1.0);
    }
    page.inner.text()
}

/// The page of one worker.
struct Page {
    inner: exposition::Page,
    /// Labels that every sample has.
    common: String,
}

impl Page {
    fn new(status: &AgentStatus) -> Self {
        let worker = status.worker.map(|worker| worker.to_string());
        let job = status.training_job.as_deref().map(|job| ("training_job", job));
        let role = status.role.as_deref().map(|role| ("role", role));
        let worker = worker.as_deref().map(|worker| ("worker", worker));
        let common: Vec<_> = job.into_iter().chain(role).chain(worker).collect();
        Self { inner: exposition::Page::default(), common: labels(&common) }
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.inner.family(&format!("trainingjob_worker_{name}"), kind, help);
    }

    fn sample(&mut self, own: &[(&str, &str)], value: f64) {
        let all = [self.common.clone(), labels(own)].into_iter().filter(|labels| !labels.is_empty());
        self.inner.sample(&all.collect::<Vec<_>>().join(","), value);
    }

    fn checkpoints(&mut self, reported: &Checkpoints) {
        self.family(
            "checkpoints",
            "gauge",
            "Checkpoints in the folder that this agent takes care of, by what they are worth.",
        );
        for (verdict, count) in reported.by_verdict() {
            self.sample(&[("verdict", verdict)], f64::from(count));
        }
        let deleted = Some(reported.deleted as f64);
        self.single("checkpoints_deleted_total", "counter", "Checkpoints that this agent has deleted.", deleted);
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        self.single(
            "checkpoint_volume_free_bytes",
            "gauge",
            "Free on the volume of checkpoints.",
            bytes(reported.free_bytes),
        );
        self.single(
            "checkpoint_volume_bytes",
            "gauge",
            "Size of the volume of checkpoints.",
            bytes(reported.total_bytes),
        );
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.family(name, kind, help);
            self.sample(&[], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use protocol::hang::Stall;
    use protocol::progress::{Progress, Source, Update};
    use protocol::report::Report;

    #[test]
    fn metrics_page_renders_the_agent_status() {
        let mut update = Update::default();
        for (name, value) in [("step", 3.0), ("steps", 12.0), ("loss", f64::NAN), ("a \"b\"\\", f64::NEG_INFINITY)] {
            update.set(name, value);
        }
        let mut progress = Progress::default();
        progress.merge(&update, Source::Post, Timestamp::from_millisecond(1500).unwrap());
        let gpu = Gpu { index: 1, uuid: "GPU-1".into(), power_watts: Some(300.5), ..Gpu::default() };
        let status = AgentStatus {
            training_job: Some("x".into()),
            worker: Some(0),
            report: Report { phase: Phase::Running, attempt: 2, ..Report::default() },
            percent: progress.percent(),
            progress,
            stall: Some(Stall { hangs: true, ..Stall::default() }),
            lost_gpus: vec![Gpu { index: 2, uuid: "GPU-2".into(), ..gpu.clone() }],
            gpus: vec![gpu],
            ..AgentStatus::default()
        };
        let page = render(&status);
        for line in [
            "# TYPE trainingjob_worker_process_state gauge",
            "trainingjob_worker_process_state{training_job=\"x\",worker=\"0\",state=\"Running\"} 1",
            "trainingjob_worker_process_state{training_job=\"x\",worker=\"0\",state=\"Exited\"} 0",
            "trainingjob_worker_attempt{training_job=\"x\",worker=\"0\"} 2",
            "trainingjob_worker_progress_percent{training_job=\"x\",worker=\"0\"} 25",
            "trainingjob_worker_metric{training_job=\"x\",worker=\"0\",name=\"loss\"} NaN",
            "trainingjob_worker_metric{training_job=\"x\",worker=\"0\",name=\"a \\\"b\\\"\\\\\"} -Inf",
            "trainingjob_worker_hang_suspected{training_job=\"x\",worker=\"0\"} 1",
            "trainingjob_worker_last_progress_timestamp_seconds{training_job=\"x\",worker=\"0\"} 1.5",
            "trainingjob_worker_gpu_lost{training_job=\"x\",worker=\"0\",gpu=\"2\",uuid=\"GPU-2\"} 1",
            "trainingjob_worker_gpu_power_watts{training_job=\"x\",worker=\"0\",gpu=\"1\",uuid=\"GPU-1\"} 300.5",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        for absent in
            ["worker_epoch", "gpu_utilization", "signs_total", "watts{training_job=\"x\",worker=\"0\",gpu=\"2\""]
        {
            assert!(!page.contains(absent), "{absent} is in\n{page}");
        }
        assert!(render(&AgentStatus::default()).contains("trainingjob_worker_attempt{} 0"));
    }
}
