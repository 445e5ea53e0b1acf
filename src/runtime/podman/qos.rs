//! Which containers the kernel kills first when the node has no memory left. Pure; the rules are the kubelet's
//! (`pkg/kubelet/qos`).

use serde_json::Value;

use crate::runtime::qos::amount;

/// The memory that a container requests, in bytes: its limit, if it has no request.
pub(super) fn requested(container: &Value) -> i64 {
    let amount = |kind| amount(&container["resources"], kind, "memory").map(|amount| amount.to_i64_up());
    amount("requests").or_else(|| amount("limits")).unwrap_or(0)
}

/// The `oom_score_adj` of a container that requests so many bytes, on a node with so many bytes of memory; none if it is
/// podman's own.
///
/// The kubelet goes down to -997 for a guaranteed pod, and to 3 for a burstable one. Without `CAP_SYS_RESOURCE` podman
/// cannot start a container below its own, which is 200 as a service of a user.
pub(super) fn oom_score(class: &str, spec: &Value, request: i64, memory: i64) -> Option<i64> {
    if class == "Guaranteed" || spec["priorityClassName"] == "system-node-critical" {
        return None;
    }
    let share = request.saturating_mul(1000).checked_div(memory).unwrap_or(0);
    Some(if class == "BestEffort" { 1000 } else { (1000 - share).clamp(200, 999) })
}
