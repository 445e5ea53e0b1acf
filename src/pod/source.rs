//! The names of the sources.

use std::str::FromStr;

/// A source of pods. The variants are in order of precedence: if two sources want a pod
/// with the same `namespace/name`, the lower one owns the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceName {
    /// Manifests in a directory, or one manifest file.
    File,
    /// Pods POSTed over HTTP.
    Http,
    /// A manifest polled from a URL (the kubelet's `http`).
    Url,
    /// Pods that an API server has bound to this node.
    Api,
}

impl SourceName {
    /// Every source, in order of precedence.
    pub const ALL: [Self; 4] = [Self::File, Self::Http, Self::Url, Self::Api];

    /// The name that podmux shows: `file`, `http`, `url` or `api`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Url => "url",
            Self::Api => "api",
        }
    }

    /// The value of the annotation `kubernetes.io/config.source`. The kubelet has
    /// three sources, and calls a polled URL `http` (`pkg/kubelet/types/pod_update.go`).
    pub const fn annotation(self) -> &'static str {
        match self {
            Self::Url => "http",
            other => other.as_str(),
        }
    }
}

/// A text is not the name of a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown source {0:?}: use file, http, url or api")]
pub struct UnknownSource(pub String);

impl FromStr for SourceName {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|source| source.as_str() == text)
            .ok_or_else(|| UnknownSource(text.to_owned()))
    }
}
