//! The pods of a job that a user means.

use super::screen::count;
use anyhow::bail;
use api::TrainingJob;
use plan::{self, OperatorInfo};
use protocol::role::{ReplicaId, RoleName};
use std::collections::BTreeSet;

/// The indices of workers as people write them: 3, or 0-7, or 0,3,8-15.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indices(pub BTreeSet<u32>);

impl std::str::FromStr for Indices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write indices of workers such as 3, 0-7 or 0,3,8-15".to_owned();
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|n| (0..4096).contains(n)).ok_or_else(wrong);
        let mut indices = BTreeSet::new();
        for part in text.split(',') {
            match part.split_once('-') {
                Some((first, last)) => indices.extend(number(first)?..=number(last)?),
                None => drop(indices.insert(number(part)?)),
            }
        }
        if indices.is_empty() { Err(wrong()) } else { Ok(Self(indices)) }
    }
}

/// The pods that are meant: all, where nothing is said.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSelection {
    /// Only the pods of this role, such as ps, or worker.
    #[arg(short, long, value_parser = role_name)]
    pub role: Option<RoleName>,
    /// Only these workers, or with --role these of that role: 3, 0-7 or 0,3,8-15.
    #[arg(short, long, visible_alias = "index")]
    pub worker: Option<Indices>,
}

pub(super) fn role_name(text: &str) -> Result<RoleName, String> {
    RoleName::parse(text).ok_or_else(|| "a role has a name such as worker or ps".to_owned())
}

impl PodSelection {
    /// Whether nothing is chosen, so that all pods are meant.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the pod in this place is meant. Indices alone are those of workers.
    #[must_use]
    pub fn has(&self, place: ReplicaId) -> bool {
        let of_role = match self.role {
            Some(role) => role == place.role,
            None => self.worker.is_none() || place.role.is_worker(),
        };
        of_role && self.worker.as_ref().is_none_or(|indices| indices.0.contains(&place.index))
    }

    /// Returns the places that are meant, in a job with these roles.
    ///
    /// # Errors
    /// If the job has no such role, or not so many pods of it. The error says what is valid.
    pub fn places(&self, job: &str, roles: &[(RoleName, u16)]) -> anyhow::Result<Vec<ReplicaId>> {
        let role = self.role.unwrap_or(RoleName::WORKER);
        let Some((_, replicas)) = roles.iter().find(|(name, _)| *name == role) else {
            let names: Vec<String> = roles.iter().map(|(name, _)| name.to_string()).collect();
            bail!("{job} has no role {role}: --role takes {}", names.join(", "));
        };
        if let Some(index) =
            self.worker.iter().flat_map(|indices| &indices.0).find(|index| **index >= u32::from(*replicas))
        {
            let has =
                if role.is_worker() { count((*replicas).into(), "worker") } else { format!("{replicas} of {role}") };
            bail!("{job} has {has}, there is no {role} {index}: --worker takes 0 to {}", replicas - 1);
        }
        let all = roles
            .iter()
            .flat_map(|(role, replicas)| (0..u32::from(*replicas)).map(|index| ReplicaId { role: *role, index }));
        Ok(all.filter(|place| self.has(*place)).collect())
    }
}

/// Returns the roles of a job with the number of their pods, the workers first.
#[must_use]
pub fn roles(job: &TrainingJob) -> Vec<(RoleName, u16)> {
    let roles = plan::resolve(job, &OperatorInfo::default()).plan.gang.roles;
    let num_workers = plan::effective(job).map_or(job.spec.num_workers(), |spec| spec.num_workers());
    let of = |role: &plan::Role| (role.name, role.pods(num_workers));
    roles.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PS: RoleName = RoleName::literal("ps");

    fn choice(role: Option<&str>, worker: Option<&str>) -> PodSelection {
        PodSelection { role: role.and_then(RoleName::parse), worker: worker.map(|text| text.parse().unwrap()) }
    }

    #[test]
    fn indices_are_parsed() {
        let indices = |text: &str| text.parse::<Indices>().map(|indices| indices.0.into_iter().collect::<Vec<_>>());
        assert_eq!(indices("3"), Ok(vec![3]));
        assert_eq!(indices("0-2"), Ok(vec![0, 1, 2]));
        assert_eq!(indices("0, 8-9,3"), Ok(vec![0, 3, 8, 9]));
        for wrong in ["", "x", "-1", "3-1", "1-", "1,,2", "4096", "999999999999"] {
            assert!(indices(wrong).unwrap_err().contains("write indices"), "{wrong}");
        }
    }

    #[test]
    fn choice_selects_members_by_role_and_index() {
        let job = [(RoleName::WORKER, 3), (PS, 2)];
        let meant = |role, worker| {
            let places = choice(role, worker).places("x", &job);
            places.map(|places| places.iter().map(ToString::to_string).collect::<Vec<_>>()).map_err(|e| e.to_string())
        };
        let owned = |places: &[&str]| Ok(places.iter().map(|place| (*place).to_owned()).collect::<Vec<_>>());
        assert_eq!(meant(None, None), owned(&["worker 0", "worker 1", "worker 2", "ps 0", "ps 1"]));
        assert_eq!(meant(None, Some("1")), owned(&["worker 1"]));
        assert_eq!(meant(Some("worker"), None), owned(&["worker 0", "worker 1", "worker 2"]));
        assert_eq!(meant(Some("ps"), None), owned(&["ps 0", "ps 1"]));
        assert_eq!(meant(Some("ps"), Some("1")), owned(&["ps 1"]));
        let wrong = |role, worker| meant(role, worker).unwrap_err();
        assert_eq!(wrong(None, Some("3")), "x has 3 workers, there is no worker 3: --worker takes 0 to 2");
        assert_eq!(wrong(Some("ps"), Some("2")), "x has 2 of ps, there is no ps 2: --worker takes 0 to 1");
        assert_eq!(wrong(Some("chief"), None), "x has no role chief: --role takes worker, ps");
        assert!(choice(None, None).is_all() && !choice(Some("ps"), None).is_all());
    }
}
