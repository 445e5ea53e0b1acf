//! From a kubeconfig to an HTTP client for the API server.
//!
//! The files that a client was made from are checked before each request: a changed file,
//! a credential that expires soon, and a response of 401 each lead to a new client. While
//! none can be made, the previous client stays in use as long as its credential is valid.
//! So neither a file that is being replaced nor a plugin that fails a minute before its last
//! token expires interrupts the source.

mod connector;
mod error;
mod exec_plugin;
mod http_client;
mod kubeconfig_file;
mod proxy;
mod tls;

pub(super) use self::http_client::is_about_credentials;
pub use self::{
    connector::{Connected, Connector},
    error::ConnectError,
    http_client::describe_failure,
    kubeconfig_file::ServerIdentity,
};
