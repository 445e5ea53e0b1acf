//! The resources of a pod: sums over its containers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Object, Quantity};

/// The resources (`limits` or `requests`) of all containers together: the sum over the
/// containers that run at the same time, or the maximum while an init container runs if that is more.
pub(crate) fn aggregate(spec: &Object, field: &str) -> BTreeMap<String, String> {
    let list = |containers: &str| spec.get(containers).and_then(Value::as_array).into_iter().flatten();
    let (mut sum, mut sidecars, mut init) = (Quantities::new(), Quantities::new(), Quantities::new());
    for container in list("containers") {
        add(&mut sum, &quantities(container, field));
    }
    for container in list("initContainers") {
        let mut needs = quantities(container, field);
        if container.get("restartPolicy").and_then(Value::as_str) == Some("Always") {
            add(&mut sum, &needs);
            add(&mut sidecars, &needs);
        } else {
            for (name, need) in &mut needs {
                if let Some(sidecar) = sidecars.get(name) {
                    *need = need.plus(sidecar);
                }
            }
            raise(&mut init, &needs);
        }
    }
    // What the container before does not need itself, its sidecars need; they only become more.
    raise(&mut init, &sidecars);
    raise(&mut sum, &init);
    sum.into_iter().map(|(name, quantity)| (name.to_owned(), quantity.canonical().into_owned())).collect()
}

type Quantities<'v> = BTreeMap<&'v str, Quantity<'v>>;

fn quantities<'v>(container: &'v Value, field: &str) -> Quantities<'v> {
    let list = container.get("resources").and_then(|resources| resources.get(field)?.as_object());
    let quantity =
        |(name, value): (&'v String, &'v Value)| Some((name.as_str(), Quantity::parse(value.as_str()?)?));
    list.into_iter().flatten().filter_map(quantity).collect()
}

fn add<'v>(sum: &mut Quantities<'v>, more: &Quantities<'v>) {
    for (name, quantity) in more {
        sum.entry(name).and_modify(|sum| *sum = sum.plus(quantity)).or_insert_with(|| quantity.clone());
    }
}

fn raise<'v>(most: &mut Quantities<'v>, other: &Quantities<'v>) {
    for (name, quantity) in other {
        if most.get(name).is_none_or(|most| quantity.exceeds(most)) {
            most.insert(name, quantity.clone());
        }
    }
}
