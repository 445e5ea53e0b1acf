//! The held events: facts become events and counts, by the rules of client-go's event correlator. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::Arc,
    time::Duration,
};

use imbl::OrdMap;
use jiff::Timestamp;

use super::event::{Event, Fact, Observation, event_name};
use crate::{
    history::{Change, Journaled as _},
    pod::{Digest, NodeName, PodKey},
};

/// The most events that are held.
pub const MAX_EVENTS: usize = 1000;
/// The size of the held events in bytes. The newest event may exceed it.
pub const MAX_BYTES: usize = 1 << 20;
/// How many keys of each kind are remembered for counting, as in client-go (`tools/record/events_cache.go`).
const REMEMBERED: usize = 4096;
/// How many facts with different messages and the same reason have events of their own within [`WINDOW`].
const OWN: usize = 9;
const WINDOW: Duration = Duration::from_mins(10);
/// How many events of one type an object may have at once, and how long it takes until it may have one more.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_mins(5);

/// The events that are held, the oldest of which go when there are too many.
///
/// The rules are those of client-go:
/// * The same fact again raises the count of its event.
/// * Of facts that differ in their message alone the tenth one within ten minutes and the later ones share one event.
/// * An object has 25 events of each type at once, and one more each five minutes. Others are counted and not
///   reported.
#[derive(Debug, Default)]
pub struct EventLog {
    held: OrdMap<PodKey, Arc<Event>>,
    /// The keys of the held events by number.
    by_number: BTreeMap<u64, PodKey>,
    bytes: usize,
    observations: Recent<Observation>,
    similar: Recent<Similar>,
    /// When the events that an object has had are paid for, at one each five minutes.
    paid: Recent<Timestamp>,
}

/// The facts that differ in their message alone.
#[derive(Debug, Default)]
struct Similar {
    /// The messages that have events of their own.
    messages: Vec<Digest>,
    last: Timestamp,
}

impl EventLog {
    /// The held events by namespace and name.
    pub fn held(&self) -> &OrdMap<PodKey, Arc<Event>> {
        &self.held
    }

    /// Records a fact. Returns the change of its event, if it is reported, and those of the events that go.
    pub fn record(
        &mut self,
        node: &NodeName,
        fact: Fact,
        now: Timestamp,
        mut next_number: impl FnMut() -> u64,
    ) -> Vec<Change<Arc<Event>>> {
        let number = next_number();
        let Some((fact, observation)) = self.correlate(fact, now, number) else { return Vec::new() };
        let event = Arc::new(Event::new(node, fact, observation, now, number));
        let old = self.held.insert(event.key().clone(), event.clone());
        if let Some(old) = &old {
            self.by_number.remove(&old.number());
            self.bytes -= old.size();
        }
        self.bytes += event.size();
        self.by_number.insert(number, event.key().clone());
        let mut changes = vec![Change { number, old, new: Some(event) }];
        while (self.held.len() > MAX_EVENTS || self.bytes > MAX_BYTES) && self.held.len() > 1 {
            let Some(old) = self.by_number.pop_first().and_then(|(_, key)| self.held.remove(&key)) else {
                break;
            };
            self.bytes -= old.size();
            changes.push(Change { number: next_number(), old: Some(old), new: None });
        }
        changes
    }

    /// The fact that is reported, with its count; none if the object has too many events.
    fn correlate(&mut self, mut fact: Fact, now: Timestamp, number: u64) -> Option<(Fact, Observation)> {
        let involved = &fact.involved;
        let object = [involved.kind, &involved.namespace, &involved.name, &involved.uid, fact.kind()];
        let object_key = key(&object);
        let reason_key = key(&[&object[..], &[&fact.reason]].concat());
        let own_key = key(&[&object[..], &[&fact.reason, &involved.field_path, &fact.message]].concat());
        let message_key = key(&[&fact.message]);

        let similar = self.similar.get(reason_key);
        if now.duration_since(similar.last).unsigned_abs() > WINDOW {
            similar.messages.clear();
        }
        similar.last = now;
        let mut is_own = similar.messages.contains(&message_key);
        if !is_own && similar.messages.len() < OWN {
            similar.messages.push(message_key);
            is_own = true;
        }
        if !is_own {
            fact.message.insert_str(0, "(combined from similar events): ");
        }
        let observation = self.observations.get(if is_own { own_key } else { reason_key });
        if observation.count == 0 {
            (observation.first, observation.name) = (now, event_name(&fact.involved, number));
        }
        observation.count = observation.count.saturating_add(1);

        let paid = self.paid.get(object_key);
        // No event is paid for longer than that, unless the clock was set back.
        if paid.duration_since(now).unsigned_abs() > REFILL * BURST {
            *paid = now;
        }
        let next = (*paid).max(now).saturating_add(REFILL).unwrap_or(Timestamp::MAX);
        if next.duration_since(now).unsigned_abs() > REFILL * BURST {
            return None;
        }
        *paid = next;
        Some((fact, observation.clone()))
    }
}

/// A key of bounded size.
fn key(parts: &[&str]) -> Digest {
    Digest::of(&parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>())
}

/// The values of the keys that were used last.
#[derive(Debug, Default)]
struct Recent<V> {
    /// With the time of the last use.
    values: HashMap<Digest, (u64, V)>,
    by_use: BTreeMap<u64, Digest>,
    uses: u64,
}

impl<V: Default> Recent<V> {
    /// The value of a key, which is the default if it is not remembered.
    fn get(&mut self, key: Digest) -> &mut V {
        if self.values.len() >= REMEMBERED
            && !self.values.contains_key(&key)
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.values.remove(&oldest);
        }
        self.uses += 1;
        let (used, value) = self.values.entry(key).or_default();
        self.by_use.remove(&mem::replace(used, self.uses));
        self.by_use.insert(self.uses, key);
        value
    }
}
