//! What field managers applied last to a posted pod, kept for their next apply.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value};

/// The most field managers that can apply one pod.
pub const MAX_MANAGERS: usize = 16;

/// What each field manager applied last, as JSON. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied(Arc<BTreeMap<String, Box<[u8]>>>);

impl Applied {
    /// Those of a stored value.
    pub(super) fn from_value(value: &Value) -> Self {
        let managers = value.as_object().into_iter().flatten();
        Self(Arc::new(
            managers.map(|(name, config)| (name.clone(), config.to_string().into_bytes().into())).collect(),
        ))
    }

    /// What a field manager applied last. Empty if nothing.
    pub fn of(&self, manager: &str) -> Map<String, Value> {
        self.0.get(manager).and_then(|config| serde_json::from_slice(config).ok()).unwrap_or_default()
    }

    /// What the other managers applied.
    pub fn others(&self, manager: &str) -> Vec<Map<String, Value>> {
        let others = self.0.keys().filter(|name| *name != manager);
        others.map(|name| self.of(name)).collect()
    }

    /// Whether one more manager is too many.
    pub fn is_full_for(&self, manager: &str) -> bool {
        self.0.len() >= MAX_MANAGERS && !self.0.contains_key(manager)
    }

    /// The same after an apply of a manager.
    pub(super) fn with(&self, manager: &str, config: Option<Box<[u8]>>) -> Self {
        let mut managers = BTreeMap::clone(&self.0);
        managers.remove(manager);
        managers.extend(config.map(|config| (manager.to_owned(), config)));
        Self(Arc::new(managers))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.0.iter().map(|(name, config)| (name.len() + config.len()) as u64).sum()
    }

    /// As a JSON object.
    pub(super) fn to_json(&self) -> Vec<u8> {
        let mut text = vec![b'{'];
        for (name, config) in &*self.0 {
            if text.len() > 1 {
                text.push(b',');
            }
            text.extend(Value::from(&**name).to_string().into_bytes());
            text.push(b':');
            text.extend(&**config);
        }
        text.push(b'}');
        text
    }
}
