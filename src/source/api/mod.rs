//! The apiserver source: the pods that an API server has bound to this node.
//!
//! It is the kubelet's `pkg/kubelet/config/apiserver.go` with client-go's Reflector
//! (`tools/cache/reflector.go`) and `UndeltaStore` behind it. How they work together:
//!
//! - the [`reflector`] is the pure state machine of list and watch,
//! - the connector makes an HTTP client of a kubeconfig and remakes it when that changes,
//! - the [`splitter`] cuts a response, in protobuf or in JSON, into events and items as it arrives,
//! - the `UndeltaStore` applies them and publishes the whole listing after each change,
//! - the source's task drives them all.

mod config;
mod connect;
#[doc(hidden)]
pub mod json_splitter;
mod list_watch;
mod metrics;
mod protobuf_event;
mod protobuf_splitter;
#[doc(hidden)]
pub mod reflector;
mod reporter;
mod source;
#[doc(hidden)]
pub mod splitter;
#[doc(hidden)]
pub mod status_error;
mod undelta_store;
mod watch_event;

pub use self::{
    config::{Config, InCluster, Kubeconfig, Proxies},
    connect::{ConnectError, Connected, Connector, ServerIdentity, describe_failure},
    metrics::ReflectorMetrics,
    source::{ApiHandle, ApiSource},
};
