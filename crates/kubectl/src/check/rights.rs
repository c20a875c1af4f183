//! Rights of the caller and the operator, according to the API server.

use crate::cluster::Cluster;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::ResourceExt;
use kube::api::PostParams;
use std::fmt;

/// Number of questions that are asked at one time.
const AT_ONCE: usize = 8;

/// A verb on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    verb: String,
    group: String,
    resource: String,
    subresource: Option<String>,
}

/// Rights that were checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The granted rights.
    pub granted: Vec<Right>,
    /// The denied rights.
    pub denied: Vec<Right>,
}

impl Rights {
    /// Whether they allow all reads and no changes, as the role `view` does.
    pub fn are_of_a_viewer(&self) -> bool {
        self.denied.iter().all(Right::changes) && !self.granted.iter().any(Right::changes)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        self.subresource.iter().try_for_each(|subresource| write!(f, "/{subresource}"))
    }
}

impl Right {
    /// `resource` may have a subresource: `pods/exec`.
    pub fn new(verb: &str, group: &str, resource: &str) -> Self {
        let (resource, subresource) = resource.split_once('/').map_or((resource, None), |(it, sub)| (it, Some(sub)));
        let (verb, group, resource) = (verb.to_owned(), group.to_owned(), resource.to_owned());
        Self { verb, group, resource, subresource: subresource.map(str::to_owned) }
    }

    /// Whether the resource has no namespace.
    pub fn is_of_cluster(&self) -> bool {
        ["nodes", "clustertrainingruntimes", "resourceflavors", "priorityclasses"].contains(&self.resource.as_str())
    }

    fn changes(&self) -> bool {
        !["get", "list", "watch"].contains(&self.verb.as_str())
    }

    fn attributes(&self, namespace: &str) -> ResourceAttributes {
        ResourceAttributes {
            namespace: (!self.is_of_cluster()).then(|| namespace.to_owned()),
            verb: Some(self.verb.clone()),
            group: Some(self.group.clone()),
            resource: Some(self.resource.clone()),
            subresource: self.subresource.clone(),
            ..ResourceAttributes::default()
        }
    }
}

/// Rights that the commands of the plugin need.
const MINE: [(&str, &str, &[&str]); 9] = [
    (api::GROUP, "trainingjobs", &["get", "list", "create", "patch", "delete"]),
    (api::GROUP, "tuningjobs", &["get", "list", "patch"]),
    ("", "configmaps", &["get", "create"]),
    ("", "events", &["list"]),
    ("", "pods", &["get", "list", "patch"]),
    ("", "pods/log", &["get"]),
    ("", "pods/exec", &["create"]),
    ("", "pods/portforward", &["create"]),
    ("batch", "jobs", &["get", "create", "delete"]),
];

/// The operator's rules, as `deploy/cluster` installs them.
const OPERATOR: &str = include_str!("../../../../deploy/cluster/rights.yaml");

/// Checks which rights the caller lacks.
///
/// # Errors
/// If the API server does not answer.
pub async fn own_rights(cluster: &Cluster, namespace: &str) -> anyhow::Result<Rights> {
    let all =
        MINE.iter().flat_map(|(group, resource, verbs)| verbs.iter().map(|verb| Right::new(verb, group, resource)));
    let reviews = cluster.everywhere::<SelfSubjectAccessReview>();
    ask(all.collect(), |right| {
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(right.attributes(namespace)),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let (reviews, review) =
            (reviews.clone(), SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() });
        async move {
            let what = "create SelfSubjectAccessReviews";
            let answer = cluster.ask(what, reviews.create(&PostParams::default(), &review)).await?;
            Ok(answer.status.is_some_and(|status| status.allowed))
        }
    })
    .await
}

/// Checks which rights this operator lacks in the namespace.
///
/// # Errors
/// If the caller has no right to ask that.
pub async fn of_operator(cluster: &Cluster, operator: &Deployment, namespace: &str) -> anyhow::Result<Rights> {
    let pod = operator.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let account = pod.and_then(|pod| pod.service_account_name.clone()).unwrap_or_else(|| "default".to_owned());
    let place = operator.namespace().unwrap_or_default();
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{place}"),
        "system:authenticated".to_owned(),
    ];
    let user = format!("system:serviceaccount:{place}:{account}");
    let reviews = cluster.everywhere::<SubjectAccessReview>();
    ask(operators(), |right| {
        let spec = SubjectAccessReviewSpec {
            resource_attributes: Some(right.attributes(namespace)),
            user: Some(user.clone()),
            groups: Some(groups.to_vec()),
            ..SubjectAccessReviewSpec::default()
        };
        let (reviews, review) = (reviews.clone(), SubjectAccessReview { spec, ..SubjectAccessReview::default() });
        async move {
            let answer =
                cluster.ask("create SubjectAccessReviews", reviews.create(&PostParams::default(), &review)).await?;
            Ok(answer.status.is_some_and(|status| status.allowed))
        }
    })
    .await
}

async fn ask<F>(all: Vec<Right>, may: impl Fn(&Right) -> F) -> anyhow::Result<Rights>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    let questions = all.into_iter().map(|right| {
        let question = may(&right);
        async move { question.await.map(|allowed| (right, allowed)) }
    });
    let answers: Vec<(Right, bool)> = stream::iter(questions).buffered(AT_ONCE).try_collect().await?;
    let (granted, denied): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, allowed)| *allowed);
    let [granted, denied] = [granted, denied].map(|some| some.into_iter().map(|(right, _)| right).collect());
    Ok(Rights { granted, denied })
}

/// Returns the rights in the operator's rules.
fn operators() -> Vec<Right> {
    #[derive(serde::Deserialize)]
    struct Document {
        #[serde(default)]
        rules: Vec<Rule>,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Rule {
        api_groups: Vec<String>,
        resources: Vec<String>,
        verbs: Vec<String>,
    }
    let mut all = Vec::new();
    let role = OPERATOR.split("\n---").next().unwrap_or_default();
    let document: Document = serde_saphyr::from_str(role).unwrap_or(Document { rules: Vec::new() });
    for rule in &document.rules {
        for (group, resource) in
            rule.api_groups.iter().flat_map(|group| rule.resources.iter().map(move |it| (group, it)))
        {
            all.extend(rule.verbs.iter().map(|verb| Right::new(verb, group, resource)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_rights_are_read_from_its_rbac_rules() {
        let all = operators();
        assert!(all.len() > 50, "{}", all.len());
        assert!(all.contains(&Right::new("update", api::GROUP, "trainingjobs/status")));
        assert!(all.contains(&Right::new("create", "", "secrets")) && !all.contains(&Right::new("get", "", "secrets")));
    }
}
