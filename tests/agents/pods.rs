//! The pods of a TrainingJob without Kubernetes: what the operator builds for them, run as the kubelet would. Each
//! agent is a PID 1 with a host name, an address and a shared memory of its own.

use api::TrainingJob;
use k8s_openapi::api::core::v1::Container;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plan::{self, OperatorInfo};
use protocol::agent_status::AgentStatus;
use protocol::attempt::AttemptEnd;
use protocol::gang::{GangPast, GangStatus};
use protocol::report::Report;
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use testkit::init::{as_init, init_of};
use testkit::pod::as_the_kubelet_does;
use testkit::room::Room;
use testkit::wait::{SOON, until};
use testkit::{ask, binary, free_ports, skipped};

/// The key of each gang.
pub const KEY: &str = "0123456789abcdef0123456789abcdef";
/// The UID of each TrainingJob.
pub const JOB: &str = "00000000-0000-4000-8000-000000000001";

/// The pods of one job, which has the name `x`.
#[expect(clippy::struct_field_names, reason = "what they are")]
pub struct Pods {
    pub room: Room,
    /// The workers first, then the other roles.
    pub seats: Vec<Seat>,
    /// Port at which the first worker's agent serves its status.
    pub metrics: u16,
    /// Port where the ranks meet in the first attempt. The second attempt uses the next port.
    pub master: u16,
    /// Folder that precedes the rest of the machine's PATH.
    bin: Option<PathBuf>,
    /// Number of pods so far.
    pods: Cell<u32>,
}

/// A member of the gang, whichever pod it has.
pub struct Seat {
    /// Name of its Job, with which its host name begins.
    pub name: String,
    pub index: u32,
    pub container: Container,
    /// Seconds from the request to stop until the kubelet kills the processes that are left.
    pub grace: i64,
}

/// The first process of a pod's container.
pub struct Agent {
    pub unshared: Child,
    pub seat: u32,
}

impl Pods {
    /// The pods of a job with these fields. None where no process can be made PID 1.
    pub fn new(test: &str, bin: Option<PathBuf>, fields: &Value) -> Option<Self> {
        if as_init().is_none() {
            skipped("gangs: no PID namespace can be made here, that takes root");
            return None;
        }
        let (room, master) = (Room::new(test), free_ports(10));
        let metrics = master + 9;
        let mut spec = json!({
            "model": "m", "dataset": "d", "image": "image:1", "gpusPerWorker": 0,
            "checkpoint": { "enabled": false }, "monitoring": { "metricsPort": metrics },
            "networking": { "masterPort": master }, "failurePolicy": { "restartPolicy": "OnFailure" },
        });
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let mut job = TrainingJob::new("x", serde_json::from_value(spec).unwrap());
        (job.metadata.namespace, job.metadata.uid) = (Some("ml".into()), Some(JOB.into()));
        let runtime = OperatorInfo { agent_image: "agent:1".into(), ..OperatorInfo::default() };
        let planned = plan::resolve(&job, &runtime);
        let plan = planned.accepted().unwrap_or_else(|refusals| panic!("{refusals}"));
        let objects = objects::objects(plan, plan::Incarnation::FIRST, &GangPast::default());
        fs::create_dir_all(room.path("config/.gang")).unwrap();
        for (file, text) in objects.config.data.unwrap() {
            fs::write(room.path("config").join(file), text).unwrap();
        }
        fs::write(room.path("config/.gang/key"), format!("{KEY}\n")).unwrap();
        fs::write(room.path("config/.gang/answers"), "3c".repeat(32)).unwrap();
        let mut hosts = "127.0.0.1 localhost\n".to_owned();
        let mut seats = Vec::new();
        for job in objects.jobs {
            let (name, spec) = (job.metadata.name.unwrap(), job.spec.unwrap());
            let pod = spec.template.spec.unwrap();
            for index in 0..spec.completions.unwrap().cast_unsigned() {
                hosts += &format!("{} {name}-{index}.x-headless {name}-{index}\n", address(seats.len() as u32));
                let (name, container) = (name.clone(), pod.containers[0].clone());
                seats.push(Seat { name, index, container, grace: pod.termination_grace_period_seconds.unwrap() });
            }
        }
        fs::write(room.path("hosts"), hosts).unwrap();
        Some(Self { room, seats, metrics, master, bin, pods: Cell::new(0) })
    }

    pub fn start(&self) -> Vec<Agent> {
        (0..self.seats.len() as u32).map(|seat| self.pod(seat)).collect()
    }

    /// A new pod for this member.
    pub fn pod(&self, seat: u32) -> Agent {
        self.pods.set(self.pods.get() + 1);
        let pod = self.pods.get();
        fs::create_dir_all(self.room.path(&format!("pod-{pod}/state"))).unwrap();
        self.container(seat, pod)
    }

    /// A container in a pod, with names, shared memory and a folder for temporary files of its own.
    pub fn container(&self, seat: u32, pod: u32) -> Agent {
        let Seat { name, index, container, .. } = &self.seats[seat as usize];
        let field = |path: &str| match path {
            "metadata.name" => format!("{name}-{index}-abcde"),
            "metadata.uid" => format!("pod-{pod}"),
            "spec.nodeName" => "node-1".to_owned(),
            "status.podIP" => address(seat).to_string(),
            "metadata.annotations['batch.kubernetes.io/job-completion-index']" => index.to_string(),
            other => panic!("{other}"),
        };
        let (env, mut args) = as_the_kubelet_does(container, &field, &[]);
        let of_pod = self.room.path(&format!("pod-{pod}")).display().to_string();
        let config = self.room.path("config").display().to_string();
        for arg in &mut args {
            *arg = arg.replace("/trainingjob", &of_pod).replace("/etc/training-config", &config);
        }
        // All pods share the machine's ports.
        args.retain(|arg| seat == 0 || !arg.starts_with("--metrics-port="));
        args.insert(1, format!("--termination-log={}", self.room.path(&format!("message-{seat}")).display()));
        let set_up = r#"mount --bind "$HOSTS" /etc/hosts && mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs /mnt &&
            hostname "$HOST" && unset HOSTS HOST && exec "$@""#;
        let mut command = as_init().unwrap();
        command.args(["--uts", "--ipc", "sh", "-c", set_up, "sh", binary("agent")]).args(args);
        let bin = self.bin.iter().map(|bin| format!("{}:", bin.display())).collect::<String>();
        command.env("PATH", format!("{bin}{}", std::env::var("PATH").unwrap())).envs(env);
        command.env("HOSTS", self.room.path("hosts")).env("HOST", format!("{name}-{index}")).env("TMPDIR", "/mnt");
        let output = fs::File::options().create(true).append(true).open(self.room.path(&format!("output-{seat}")));
        let output = output.unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output).current_dir(&self.room.0);
        Agent { unshared: command.spawn().unwrap(), seat }
    }

    /// The output of an agent and its program.
    pub fn output(&self, seat: u32) -> String {
        fs::read_to_string(self.room.path(&format!("output-{seat}"))).unwrap_or_default()
    }

    pub fn all_output(&self) -> String {
        (0..self.seats.len() as u32).map(|seat| format!("--- {seat}\n{}\n", self.output(seat))).collect()
    }

    fn status(&self) -> Option<GangStatus> {
        serde_json::from_str::<AgentStatus>(&ask(self.metrics, "GET", "/status", "")?).ok()?.gang
    }

    /// The first attempt, once it has ended.
    pub fn first_ended(&self) -> AttemptEnd {
        let what = format!("the end of the first attempt, told in {}", self.room.0.display());
        until(&what, SOON, || self.status().and_then(|reported| reported.ended.into_iter().next()))
    }

    /// The final report of a member whose agent has exited.
    pub fn report(&self, seat: u32) -> Report {
        Report::parse(&fs::read_to_string(self.room.path(&format!("message-{seat}"))).unwrap()).unwrap()
    }

    pub fn all_exit(&self, agents: Vec<Agent>, code: i32) {
        for mut agent in agents {
            let what = format!("{} to exit, in {}", agent.seat, self.room.0.display());
            let status = until(&what, SOON, || agent.unshared.try_wait().unwrap());
            assert_eq!(status.code(), Some(code), "{}: {}", agent.seat, self.all_output());
        }
    }

    /// Lets later attempts end.
    pub fn allow(&self) {
        fs::write(self.room.path("go"), "").unwrap();
    }

    /// The gang's setup, as its agents read it.
    pub fn setup(&self) -> Value {
        serde_json::from_slice(&fs::read(self.room.path("config/gang.json")).unwrap()).unwrap()
    }
}

impl Agent {
    pub fn signal(&self, signal: Signal) {
        let pid = until("the agent", SOON, || init_of(self.unshared.id()));
        kill(Pid::from_raw(pid), signal).unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.unshared.kill();
        let _ = self.unshared.wait();
    }
}

/// The address of a member's pod.
pub fn address(seat: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + seat)
}
