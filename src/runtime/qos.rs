//! The `qosClass` of a pod. Pure; the rules are the kubelet's (`pkg/apis/core/v1/helper/qos`).

use serde_json::Value;

use crate::pod::Quantity;

/// An amount in the `requests` or `limits` of these resources.
pub(super) fn amount<'r>(resources: &'r Value, kind: &str, name: &str) -> Option<Quantity<'r>> {
    Quantity::parse(resources[kind][name].as_str()?)
}

/// The `qosClass` of a pod with these `resources` of its own, or else of its containers. No request exceeds its limit, so
/// the sums need not be compared.
pub(super) fn class<'r>(own: &'r Value, containers: impl Iterator<Item = &'r Value>) -> &'static str {
    let parts: Vec<&Value> = if own.is_object() { vec![own] } else { containers.collect() };
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
