//! Finds the pod that a name, or the beginning of one, means.

use serde_json::Value;

use crate::{
    cli::{
        connection::{Connection, pod_path},
        failure::Failure,
        output::{items, text},
        status::Status,
    },
    pod::PodKey,
};

/// The form of a list that has only the metadata of its objects.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
/// How many pods an error names.
const MAX_NAMES: usize = 5;

/// The pod with this name, or the only one of the namespace whose name begins so.
pub(super) async fn pod(connection: &Connection, namespace: &str, name: &str) -> Result<Value, Failure> {
    let status = match connection.get(&pod_path(namespace, name)).await {
        Err(Failure::Server(status)) if status.is_not_found() => status,
        answer => return answer,
    };
    let list = connection.get_as("/api/v1/pods", METADATA).await?;
    let all = items(&list["items"]).iter().map(|pod| &pod["metadata"]);
    let keys = all.map(|pod| PodKey::new(text(&pod["namespace"]), text(&pod["name"])));
    let alike: Vec<PodKey> = keys.filter(|key| key.name().starts_with(name)).collect();
    let here: Vec<&PodKey> = alike.iter().filter(|key| key.namespace() == namespace).collect();
    if let [only] = &*here {
        return connection.get(&pod_path(namespace, only.name())).await;
    }
    let message = missing(namespace, name, &here, &alike);
    Err(Failure::Server(Status { message, ..status }))
}

/// What to do about a name that no pod has.
fn missing(namespace: &str, name: &str, here: &[&PodKey], elsewhere: &[PodKey]) -> String {
    let what = format!("pods {name:?} not found in namespace {namespace:?}");
    if !here.is_empty() {
        let names = some(here.iter().map(|key| key.name()), here.len());
        return format!("{what}: the names of {} pods begin so: {names}", here.len());
    }
    match elsewhere {
        [] => format!("{what}: podmux get pods -A lists all pods"),
        [key, ..] => {
            let names = some(elsewhere.iter().map(PodKey::as_str), elsewhere.len());
            format!("{what}, but there is {names}: give -n {}", key.namespace())
        }
    }
}

/// The first of these names, and how many more there are.
fn some<'n>(names: impl Iterator<Item = &'n str>, count: usize) -> String {
    let more = count.checked_sub(MAX_NAMES).filter(|more| *more > 0);
    let more = more.map(|more| format!(" and {more} more")).unwrap_or_default();
    names.take(MAX_NAMES).collect::<Vec<_>>().join(", ") + &more
}
