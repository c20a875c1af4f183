//! The Workload of a gang of several roles, and the Jobs that wait for it.

use super::error::{Error, call, refusal, unless_gone};
use super::pass::{CreateOutcome, Pass};
use super::refused;
use api::{Reason, TrainingJob};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use lifecycle::{self, GangState};
use objects::{self, PriorityClassRef, ResourceFlavor, WholeJob, Workload, names};
use observe::{Blocked, ChildKey};
use plan::{Incarnation, Plan};
use protocol::gang::GangPast;
use protocol::role::RoleName;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use tracing::info;

/// A Workload with all fields that the API server has.
#[derive(kube::Resource, serde::Serialize, serde::Deserialize, Clone, Debug)]
#[resource(inherit = Workload)]
struct WholeWorkload {
    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Pass<'_, TrainingJob> {
    /// Creates the Workload. The watch then reports its changes.
    pub(super) async fn ensure_workload(&self, plan: &Plan) -> Result<(), Error> {
        let Some(mut workload) = objects::workload(plan) else { return Ok(()) };
        if let Some(class) = &plan.gang.workers().pod.scheduling.priority {
            let api: Api<PriorityClass> = Api::all(self.context.client.clone());
            // If the class does not exist, the API server refuses the pods with a message of its own.
            let found = match call("get PriorityClass", api.get_opt(class)).await {
                Err(error) if refusal(&error).is_some_and(kube::core::Status::is_forbidden) => {
                    let message = format!(
                        "PriorityClass {class} of spec.scheduling.priority can't be read, and Kueue needs its value: {error}. \
                         Let a ClusterRole of the operator get priorityclasses.scheduling.k8s.io, or make the job again \
                         without priority"
                    );
                    self.block(ChildKey::WORKLOAD, Some(Blocked { reason: Reason::Forbidden, message }));
                    return Ok(());
                }
                answer => answer?,
            };
            let priority = found.map(|class| class.value);
            workload.spec.priority_class_ref = priority.map(|_| PriorityClassRef::of_pods(class));
            workload.spec.priority = priority;
        }
        let blocked = match self.create(&workload).await {
            Ok(CreateOutcome::Made(_) | CreateOutcome::Found(_)) => None,
            Ok(CreateOutcome::Blocked(blocked)) => Some(blocked),
            Err(error) if refusal(&error).is_some_and(refused::kind_is_unknown) => {
                let message = "the API server has no Workload of kueue.x-k8s.io/v1beta2, which spec.scheduling.queue needs: \
                               install Kueue 0.15 or newer, or make the job again without queue";
                Some(Blocked { reason: Reason::QueueManagerMissing, message: message.to_owned() })
            }
            Err(error) => return Err(error),
        };
        self.block(ChildKey::WORKLOAD, blocked);
        Ok(())
    }

    /// Unsuspends a Job on the nodes that were assigned to its role.
    pub(super) async fn let_job_go(
        &self,
        plan: &Plan,
        name: &str,
        uid: &str,
        role: RoleName,
        flavors: &BTreeSet<String>,
    ) -> Result<(), Error> {
        let at = plan.gang.roles.iter().position(|known| known.name == role);
        let jobs = objects::jobs(plan, Incarnation::FIRST, &GangPast::default());
        let pod =
            at.and_then(|at| jobs.into_iter().nth(at)).and_then(|job| job.spec?.template.spec).unwrap_or_default();
        let (mut selector, mut tolerations) =
            (pod.node_selector.unwrap_or_default(), pod.tolerations.unwrap_or_default());
        let api: Api<ResourceFlavor> = Api::all(self.context.client.clone());
        for flavor in flavors {
            let flavor = match call("get ResourceFlavor", api.get(flavor)).await {
                Ok(flavor) => flavor,
                Err(error) => {
                    let message = format!("ResourceFlavor {flavor}, of which {name} is to be, can't be read: {error}");
                    let blocked =
                        refusal(&error).map(|_| Blocked { reason: Reason::Forbidden, message }).ok_or(error)?;
                    self.block(ChildKey::WORKLOAD, Some(blocked));
                    return Ok(());
                }
            };
            selector.extend(flavor.spec.node_labels);
            tolerations.extend(flavor.spec.tolerations);
        }
        self.block(ChildKey::WORKLOAD, None);
        let jobs = self.api::<WholeJob>();
        let Some(found) = call("get Job", jobs.get_opt(name)).await? else { return Ok(()) };
        let known = found.rest.get("spec").and_then(|spec| spec.pointer("/template/spec/nodeSelector"));
        // Removes what an earlier admission has left.
        let mut patched: Map<String, Value> =
            known.and_then(Value::as_object).into_iter().flatten().map(|(key, _)| (key.clone(), Value::Null)).collect();
        patched.extend(selector.into_iter().map(|(key, value)| (key, json!(value))));
        info!(name, "letting the Job go, which Kueue has admitted");
        let pod = json!({ "nodeSelector": patched, "tolerations": tolerations });
        self.patch_job(name, uid, json!({ "suspend": false, "template": { "spec": pod } })).await
    }

    /// Suspends a Job. Its pods end, and the Job stays.
    pub(super) async fn hold_job(&self, name: &str, uid: &str) -> Result<(), Error> {
        info!(name, "holding the Job back, which Kueue has not admitted");
        self.patch_job(name, uid, json!({ "suspend": true })).await
    }

    async fn patch_job(&self, name: &str, uid: &str, spec: Value) -> Result<(), Error> {
        let patch = Patch::Merge(json!({ "metadata": { "uid": uid }, "spec": spec }));
        unless_gone(
            self.context.write("patch Job", self.api::<Job>().patch(name, &PatchParams::default(), &patch)).await,
        )
        .map(drop)
    }

    /// Reports to Kueue how the gang stands. The rest of the Workload's status stays as in the version that was read.
    pub(super) async fn update_workload(&self, plan: &Plan, news: GangState) -> Result<(), Error> {
        let name = names::workload_name(&plan.identity.name, &plan.identity.uid);
        let api = self.api::<WholeWorkload>();
        let Some(found) = call("get Workload", api.get_opt(&name)).await? else { return Ok(()) };
        let status = found.rest.get("status").cloned().unwrap_or_default();
        let reported = with_news(&status, news, &lifecycle::whole_second(Timestamp::now()).to_string());
        let patch = json!({ "metadata": { "uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version }, "status": reported });
        info!(name, ?news, "telling Kueue");
        let answer = self
            .context
            .write("tell Workload", api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)))
            .await;
        // On a conflict the watch brings the other client's change.
        unless_gone(answer).map(drop)
    }

    /// Takes the Workload out of its queue.
    pub(super) async fn delete_workload(&self, name: &str, uid: &str) -> Result<(), Error> {
        self.delete::<Workload>(name, uid, DeleteParams::background()).await
    }
}

/// The part of a Workload's status that changes with the news.
fn with_news(status: &Value, news: GangState, now: &str) -> Value {
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let evicted = conditions.iter().find(|condition| condition["type"] == "Evicted").cloned().unwrap_or_default();
    let mut set = |type_: &str, status: bool, reason: &str, message: &str| {
        let status = if status { "True" } else { "False" };
        let known = conditions.iter().position(|condition| condition["type"] == type_);
        let since = known
            .filter(|at| conditions[*at]["status"] == status)
            .map(|at| conditions[at]["lastTransitionTime"].clone());
        let since = since.unwrap_or_else(|| json!(now));
        let condition = json!({
            "type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
        });
        match known {
            Some(at) => conditions[at] = condition,
            None => conditions.push(condition),
        }
    };
    match news {
        GangState::Runs => set("PodsReady", true, "Started", "every program of the gang runs"),
        GangState::Ended { succeeded } => {
            let (reason, message) = if succeeded {
                ("Succeeded", "the TrainingJob is Completed")
            } else {
                ("Failed", "the TrainingJob is Failed")
            };
            set("Finished", true, reason, message);
        }
        GangState::Left => {
            // Kueue does the same for its own Jobs.
            let reason = evicted["reason"].as_str().unwrap_or("Evicted");
            let message = evicted["message"].as_str().unwrap_or_default();
            set("Requeued", ["Preempted", "NodeFailures"].contains(&reason), reason, message);
            set("QuotaReserved", false, "Pending", message);
            set("Admitted", false, "NoReservation", "The workload has no reservation");
        }
    }
    let mut reported = json!({ "conditions": conditions });
    if news == GangState::Left {
        reported["admission"] = Value::Null;
    }
    reported
}
