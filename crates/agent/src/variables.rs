//! The variables that the agent was given as arguments (`--env=NAME=VALUE`), by name.

use std::sync::OnceLock;

/// The variables that the agent was given, in the order of the arguments.
static GIVEN: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Sets the variables that the agent was given. Called once, before any variable is requested.
pub fn give(variables: Vec<(String, String)>) {
    let _ = GIVEN.set(variables);
}

/// All of them, in the order of the arguments.
pub fn given() -> impl Iterator<Item = (&'static str, &'static str)> {
    GIVEN.get().into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str()))
}

/// A variable that the agent was given, or else one of the container's environment, unless it is empty.
pub fn variable(name: &str) -> Option<String> {
    let given = given().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned());
    given.or_else(|| std::env::var(name).ok()).filter(|value| !value.is_empty())
}
