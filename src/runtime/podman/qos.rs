//! The `qosClass` of a pod, and which containers the kernel kills first when the node has no memory left. Pure; the rules
//! are the kubelet's (`pkg/apis/core/v1/helper/qos`, `pkg/kubelet/qos`).

use serde_json::Value;

use crate::pod::Quantity;

/// An amount in the `requests` or `limits` of a container or a pod.
pub(super) fn amount<'a>(of: &'a Value, kind: &str, name: &str) -> Option<Quantity<'a>> {
    Quantity::parse(of["resources"][kind][name].as_str()?)
}

/// The `qosClass` of a pod. No request exceeds its limit, so the sums need not be compared.
pub(super) fn class(spec: &Value) -> &'static str {
    let list = |field: &'static str| spec[field].as_array().into_iter().flatten();
    let containers = list("initContainers").chain(list("containers"));
    // Resources of the pod count in place of those of its containers.
    let parts: Vec<&Value> = if spec["resources"].is_object() { vec![spec] } else { containers.collect() };
    let milli = |part, kind, name| amount(part, kind, name).map(|amount| amount.to_milli_i64_up());
    let pair = |part, name| (milli(part, "requests", name), milli(part, "limits", name));
    let pairs: Vec<_> =
        parts.into_iter().flat_map(|part| [pair(part, "cpu"), pair(part, "memory")]).collect();
    let is_zero = |amount: &Option<i64>| amount.unwrap_or(0) == 0;
    if pairs.iter().all(|(request, limit)| is_zero(request) && is_zero(limit)) {
        "BestEffort"
    } else if pairs.iter().all(|(request, limit)| !is_zero(limit) && request.or(*limit) == *limit) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// The `oom_score_adj` of a container on a node with so many bytes of memory; none if it is podman's own.
///
/// The kubelet goes down to -997 for a guaranteed pod, and to 3 for a burstable one. Without `CAP_SYS_RESOURCE` podman
/// cannot start a container below its own, which is 200 as a service of a user.
pub(super) fn oom_score(class: &str, spec: &Value, container: &Value, memory: i64) -> Option<i64> {
    if class == "Guaranteed" || spec["priorityClassName"] == "system-node-critical" {
        return None;
    }
    let amount = |kind| amount(container, kind, "memory").map(|amount| amount.to_i64_up());
    let request = amount("requests").or_else(|| amount("limits")).unwrap_or(0);
    let share = request.saturating_mul(1000).checked_div(memory).unwrap_or(0);
    Some(if class == "BestEffort" { 1000 } else { (1000 - share).clamp(200, 999) })
}
