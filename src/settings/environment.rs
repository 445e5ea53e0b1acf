//! The environment, as it is passed in.

use std::collections::BTreeMap;

/// The environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// The variable with the address of the agent for `get`, `apply` and `delete`; the agent ignores it.
pub const SERVER_VARIABLE: &str = "PODMUX_SERVER";
