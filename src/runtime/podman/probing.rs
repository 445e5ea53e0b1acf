//! Probes the containers of a pod as long as it is supervised, and does what the results ask for.

use std::{fs, future::pending, mem::replace};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::info;

use super::{
    api::Api,
    context::{Context, lock},
    files,
    plan::{Seen, State, is_over},
    probe::{Kind, Probe},
    supervise::Supervised,
};
use crate::pod_columns::{PROBE_FAILED, STOPPED};

impl Context {
    /// Probes the running containers of a pod: each probe for itself, so that none waits for another one.
    pub(super) async fn probe(&self, api: &Api, pod: &Supervised) {
        join_all((0..pod.probing.probes.len()).map(|index| self.repeat_probe(api, pod, index))).await;
        // There are none.
        pending::<()>().await;
    }

    async fn repeat_probe(&self, api: &Api, pod: &Supervised, index: usize) {
        let (probing, probe) = (&pod.probing, &pod.probing.probes[index]);
        let Some(container) = pod.translation.container(&probe.container) else { return };
        let mut changes = probing.changes();
        let limit = probe.time_limit();
        // A command that has exceeded its time limit, with its container: podman does not end it, and it is not started
        // again before its end.
        let mut hanging = None;
        // Whether podman answered in time when it was asked last.
        let mut has_answered = true;
        loop {
            changes.mark_unchanged();
            let Some((at, seen)) = self.next_probe(pod, index) else {
                let _ = changes.changed().await;
                continue;
            };
            tokio::select! {
                biased;
                _ = changes.changed() => continue,
                () = sleep_until(at) => {}
            }
            hanging = hanging.filter(|(id, _)| *id == seen.id);
            let mut result = None;
            // What a run has found too late does not count.
            if let Some((_, run)) = &mut hanging
                && timeout(limit, run).await.is_ok()
            {
                hanging = None;
            }
            if hanging.is_none() {
                let run = probe.run(api, &self.config.host, container, seen.id.clone(), self.address_of(pod));
                let (_, run) = hanging.insert((seen.id.clone(), Box::pin(run)));
                result = timeout(limit, run).await.ok();
            }
            if result.is_some() || !probe.is_command() {
                hanging = None;
            }
            let late = || Err(format!("no result within {:?}", probe.timeout));
            let result = match result {
                Some(result) => {
                    has_answered |= result.is_some();
                    result
                }
                // It may be podman that hangs, or that has hung until now.
                None if probe.is_command() => {
                    let answers = matches!(timeout(limit, api.inspect(&seen.id)).await, Ok(Ok(_)));
                    (replace(&mut has_answered, answers) && answers).then(late)
                }
                None => Some(late()),
            };
            let passed = result.as_ref().map(Result::is_ok);
            let Some((has_passed, is_news)) = probing.note(index, &seen, passed) else { continue };
            if let Some(Err(error)) = result.filter(|_| is_news && !has_passed) {
                self.unhealthy(api, pod, probe, &seen, &error).await;
            }
            if is_news {
                self.keep_found(pod, &seen).await;
                // A startup probe that has passed lets the others begin.
                probing.changed();
                self.publish(pod);
                pod.wake.notify_one();
            }
        }
    }

    /// Keeps what the probes of a container have found for the next agent.
    async fn keep_found(&self, pod: &Supervised, seen: &Seen) {
        if let (true, is_ready) = pod.probing.result(seen) {
            let path = files::found_file(&self.config.directory, &pod.uid, &seen.name);
            let found = format!("{} {is_ready}", seen.start());
            // Without it the probes begin again after a restart of the agent.
            let _ = self.config.host.threads.blocking(move || fs::write(path, found)).await;
        }
    }

    /// Takes over what the probes of an earlier agent have found.
    pub(super) async fn restore_found(&self, pod: &Supervised) {
        let seen = lock(&pod.memory).seen.containers.clone();
        for seen in seen.iter().filter(|seen| seen.state == State::Running) {
            let path = files::found_file(&self.config.directory, &pod.uid, &seen.name);
            let kept = self.config.host.threads.blocking(move || files::read_message(&path)).await;
            let kept = kept.unwrap_or_default();
            if let Some(is_ready) = kept.strip_prefix(&seen.start()) {
                pod.probing.restore(seen, is_ready == " true");
            }
        }
    }

    /// A container is not ready, or is stopped, because a probe has failed often enough.
    async fn unhealthy(&self, api: &Api, pod: &Supervised, probe: &Probe, seen: &Seen, error: &str) {
        let (kind, container) = (probe.kind.word(), &*probe.container);
        if probe.kind == Kind::Readiness {
            info!(pod = &*pod.shown, container, kind, error, "probe failed; container not ready");
            return;
        }
        // A command ends with its container, which may have ended by itself.
        let _ = self.look(api, pod).await;
        // What a look has found ended keeps the end that was seen, for the next agent too.
        let look = pod.served.lock().await;
        let runs = |now: &Seen| now.state == State::Running && now.start() == seen.start();
        let is_needed = {
            let seen = &lock(&pod.memory).seen;
            seen.is_up && seen.containers.iter().any(runs) && !is_over(&pod.translation, seen)
        };
        if !is_needed {
            return;
        }
        if !matches!(api.signal(&seen.id).await, Ok(true)) {
            return;
        }
        info!(pod = &*pod.shown, container, kind, error, "probe failed; container stopped");
        let end = format!("{}{STOPPED}{kind}{PROBE_FAILED}{error}", seen.start());
        self.keep_end(&pod.uid, &seen.id, Some(end)).await;
        drop(look);
        // Its end is an event, and the container is started again by its restartPolicy. If it does not end, its probes
        // fail again.
        let _ = api.end(&seen.id, probe.grace).await;
    }

    fn next_probe(&self, pod: &Supervised, index: usize) -> Option<(Instant, Seen)> {
        let (memory, now) = (lock(&pod.memory), self.config.host.clock.now());
        // Its sidecars are being stopped, within their grace.
        if pod.probing.probes[index].kind != Kind::Readiness && is_over(&pod.translation, &memory.seen) {
            return None;
        }
        let running = memory.seen.containers.iter().filter(|seen| seen.state == State::Running);
        pod.probing.due(index, &running.collect::<Vec<_>>(), now)
    }

    /// The address that a pod's probes go to. A pod of a user without root has none that the node reaches.
    fn address_of(&self, pod: &Supervised) -> Option<String> {
        if pod.translation.host_network {
            return Some(lock(&self.address).as_deref().unwrap_or("127.0.0.1").to_owned());
        }
        lock(&pod.memory).seen.addresses.first().cloned()
    }
}
