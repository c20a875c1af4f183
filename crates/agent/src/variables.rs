//! The variables that the agent was given as arguments (`--env=NAME=VALUE`), for who asks for one by name.

use std::sync::OnceLock;

/// What the agent was given, in that order.
static GIVEN: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Takes what the agent was given. Once, before anything asks for a variable.
pub fn give(variables: Vec<(String, String)>) {
    let _ = GIVEN.set(variables);
}

/// All of them, in the order of the arguments.
pub fn given() -> impl Iterator<Item = (&'static str, &'static str)> {
    GIVEN.get().into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str()))
}

/// A variable that the agent was given, or else of the container's environment, unless it is empty.
pub fn variable(name: &str) -> Option<String> {
    let given = given().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned());
    given.or_else(|| std::env::var(name).ok()).filter(|value| !value.is_empty())
}
