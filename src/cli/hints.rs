//! What to write instead of an argument that is not understood.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What to write instead, for arguments that newcomers try.
pub(super) fn hint(subcommand: &str, error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match (subcommand, error.kind()) {
        ("run", ErrorKind::UnknownArgument) => {
            let word = text(ContextKind::InvalidArg).filter(|arg| !arg.starts_with('-'))?;
            Some(match word {
                "true" | "false" => {
                    format!("a switch has its value after '=', such as --anonymous-auth={word}")
                }
                path => format!("manifests are named with --pod-manifest-path {path}"),
            })
        }
        ("apply" | "diff", ErrorKind::UnknownArgument) => {
            let path = text(ContextKind::InvalidArg).filter(|arg| !arg.starts_with('-'))?;
            Some(format!("manifests are named with -f {path}"))
        }
        ("get", ErrorKind::InvalidValue) if text(ContextKind::InvalidArg) == Some("<RESOURCE>") => {
            let what = match text(ContextKind::InvalidValue)? {
                "all" => "podmux get pods -A shows all pods",
                "no" | "node" | "nodes" | "ns" | "namespace" | "namespaces" => {
                    "kubectl shows it: podmux kubeconfig prints what it needs"
                }
                "deploy" | "deployment" | "deployments" | "ds" | "daemonset" | "daemonsets" | "sts"
                | "statefulset" | "statefulsets" | "job" | "jobs" | "svc" | "service" | "services" => {
                    "podmux runs pods only: podmux get pods"
                }
                _ => return None,
            };
            Some(what.to_owned())
        }
        _ => None,
    }
}
