//! A node agent with a source and a sink of its own, built on the library alone.
//!
//! ```text
//! cargo run --no-default-features --example custom_source_and_sink
//! ```
//!
//! The source reads the desired pods from an inventory that changes over time. The sink keeps
//! the pods that run. Its first delivery fails, to show that the update is delivered again. One
//! pod runs since an earlier run of the agent and is no longer wanted.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example shows what happens")]

use std::{collections::BTreeMap, error::Error, time::Duration};

use podmux::{
    host::Clock,
    manifest::{Preparation, read},
    mux::{Mux, Notify, SourceChannel},
    pod::{ListingBuilder, NodeName, Op, Origin, SourceName, UpdateSource},
    sink::{Delivery, SequencedUpdate, Sink, SinkError},
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The inventory at three moments: the names of the desired pods and their images.
const INVENTORY: [&[(&str, &str)]; 3] = [
    &[("web", "nginx:1.27"), ("db", "postgres:17")],
    &[("web", "nginx:1.28"), ("db", "postgres:17")],
    &[("db", "postgres:17")],
];
/// Longer than the delay before the first retry, so that the sink receives each change.
const PAUSE: Duration = Duration::from_millis(600);

/// Publishes the inventory whenever it changes: all pods each time, never a single change.
async fn source(channel: SourceChannel) -> Result<(), Box<dyn Error>> {
    let clock = Clock::default();
    let node = NodeName::new("node1")?;
    let preparation = Preparation { source: channel.source(), node, generate: None, namespace: None };
    // It remembers which pods are the same ones, so it lives as long as the source.
    let mut wanted = ListingBuilder::new(channel.source());
    for inventory in INVENTORY {
        let mut pods = Vec::new();
        for (name, image) in inventory {
            pods.extend(read(manifest(name, image).as_bytes(), &preparation)?.pods);
        }
        wanted.put(&Origin::from("inventory"), pods, clock.now());
        channel.publish(wanted.listing());
        sleep(PAUSE).await;
    }
    Ok(())
}

fn manifest(name: &str, image: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, uid: {name}-1}}, \
          spec: {{containers: [{{name: main, image: \"{image}\"}}]}}}}"
    )
}

/// Keeps the pods that run: by `namespace/name`, the source and the image.
struct Runtime {
    running: BTreeMap<String, (UpdateSource, String)>,
    failed: bool,
}

impl Sink for &mut Runtime {
    async fn deliver(&mut self, message: &SequencedUpdate) -> Result<(), SinkError> {
        if !self.failed {
            self.failed = true;
            println!("{} fails once", message.seq);
            return Err(SinkError::retry("the container runtime is not up yet"));
        }
        let update = &message.update;
        if update.op == Op::Set {
            // The stream begins: these are all pods of the source.
            let is_listed = |key: &str| update.pods.iter().any(|pod| pod.key().as_str() == key);
            self.running.retain(|key, (source, _)| *source != update.source || is_listed(key));
            println!("{} {} of source {}", message.seq, update.op, update.source);
        }
        for pod in update.pods.iter() {
            println!("{} {} {} of source {}", message.seq, update.op, pod.key(), update.source);
            match update.op {
                Op::Remove => drop(self.running.remove(pod.key().as_str())),
                _ => drop(self.running.insert(pod.key().to_string(), (update.source, image(pod.text())?))),
            }
        }
        Ok(())
    }
}

/// The image of a pod's container.
fn image(pod: &[u8]) -> Result<String, SinkError> {
    let pod: serde_json::Value = serde_json::from_slice(pod).map_err(SinkError::fatal)?;
    Ok(pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default().to_owned())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mux, merging) = Mux::new(&[SourceName::Api]);
    let channel = mux.channel(SourceName::Api).ok_or("a source has one channel")?;
    let api = UpdateSource::One(SourceName::Api);
    let old = ("default/old-node1".to_owned(), (api, "nginx:1.26".to_owned()));
    let mut runtime = Runtime { running: BTreeMap::from([old]), failed: false };
    let updates = mux.updates(Notify::Incremental);
    let (delivery, status) = Delivery::new("runtime", &mut runtime, updates);
    // When the source ends, the mux ends, and then the delivery.
    let (published, (), delivered) =
        tokio::join!(source(channel), merging.run(), delivery.run(CancellationToken::new()));
    published?;
    delivered?;
    println!("acknowledged: {:?}, running: {:?}", status.borrow().acknowledged, runtime.running);
    let db = ("default/db-node1".to_owned(), (api, "postgres:17".to_owned()));
    assert_eq!(runtime.running, BTreeMap::from([db]));
    Ok(())
}
