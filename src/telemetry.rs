//! The log: to stderr, as text or JSON, never in anybody's way.
//!
//! Field names are the same everywhere: `source`, `op`, `pod`, `path` and
//! `error` speak of pods and manifests, `sink` and `seq` of a stream, `task` of
//! the crew. Header values, tokens and pod environment values are never logged.
