//! webhook: updates POSTed by the sink, and bare POSTs of the same bodies by the same client.
//!
//! `cargo bench --bench webhook`; a number as argument is the count of updates of each run.
//! The receiver answers 204 at once. Both use one connection to it, over plain HTTP on loopback.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    reason = "a benchmark fails by panicking, prints its results, and is not a library"
)]

mod support;

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use bytes::Bytes;
use http::Request;
use jiff::Timestamp;
use podmux::{
    client::{Client, ClientSettings},
    db::Sequence,
    host::Host,
    mux::{Mux, Notify},
    pod::{ListingBuilder, Origin, Prepared, SourceName},
    registry::Config,
};
use support::{number_argument, pod, wants_figures};
use tokio::{runtime::Builder, sync::watch};
use tokio_util::sync::CancellationToken;

fn main() {
    let count = number_argument().unwrap_or(if wants_figures() { 5_000 } else { 20 });
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for pods in [1, 100] {
        let served = Arc::new(AtomicUsize::new(0));
        let url = receiver(&served);
        let bytes = runtime.block_on(webhook(&url, &served, pods, count));
        runtime.block_on(bare(&url, pods, bytes, count));
    }
}

/// A server that reads each body and answers 204.
fn receiver(served: &Arc<AtomicUsize>) -> String {
    let served = served.clone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let served = served.clone();
            thread::spawn(move || serve(stream.unwrap(), &served));
        }
    });
    url
}

fn serve(mut stream: TcpStream, served: &AtomicUsize) {
    stream.set_nodelay(true).unwrap();
    let (mut bytes, mut part) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            match stream.read(&mut part) {
                Ok(count @ 1..) => bytes.extend_from_slice(&part[..count]),
                _ => return,
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.split_once("content-length: ").unwrap().1.lines().next().unwrap();
        let length = end + length.parse::<usize>().unwrap();
        while bytes.len() < length {
            match stream.read(&mut part) {
                Ok(count @ 1..) => bytes.extend_from_slice(&part[..count]),
                _ => return,
            }
        }
        bytes.drain(..length);
        served.fetch_add(1, Ordering::SeqCst);
        if stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").is_err() {
            return;
        }
    }
}

/// Publishes a listing for each update, in which all pods are changed, and waits for its
/// acknowledgement. Returns the size of a body.
async fn webhook(url: &str, served: &AtomicUsize, pods: usize, count: u64) -> usize {
    let (mux, merging) = Mux::new(&[SourceName::File]);
    tokio::spawn(merging.run());
    let channel = mux.channel(SourceName::File).unwrap();
    let numbers = Sequence::new("run", Timestamp::now());
    let config = Config::parse(&format!("webhook={url}")).unwrap();
    let acknowledged = Arc::new(watch::Sender::default());
    let updates = mux.updates(Notify::Incremental);
    let open = config.open_sink(updates, numbers, &Arc::from("bench"), &acknowledged, Host::default());
    let open = open.unwrap().unwrap();
    let mut status = open.status;
    tokio::spawn((open.run)(CancellationToken::new()));
    let mut wanted = ListingBuilder::new(SourceName::File);
    let mut listings = Vec::new();
    for round in 0..2 {
        let all: Vec<_> = (0..pods).map(|number| prepared(number, round)).collect();
        wanted.put(&Origin::from("bench"), all, Timestamp::UNIX_EPOCH);
        listings.push(wanted.listing());
    }
    // The beginning: a SET for each source.
    channel.publish(listings[0].clone());
    while served.load(Ordering::SeqCst) < SourceName::ALL.len() {
        status.changed().await.unwrap();
    }
    let mut last = status.wait_for(|status| status.busy_since.is_none()).await.unwrap().acknowledged;
    let begin = Instant::now();
    for round in 1..=count {
        channel.publish(listings[usize::from(round % 2 == 1)].clone());
        last = status.wait_for(|status| status.acknowledged > last).await.unwrap().acknowledged;
    }
    print(&format!("webhook/{pods}"), count, begin);
    listings[0].iter().map(|(_, entry)| entry.pod().text().len() + 1).sum::<usize>() + 100
}

fn prepared(number: usize, round: usize) -> Prepared {
    let mut pod = pod(&format!("pod-{number:05}"), round);
    pod["metadata"]["uid"] = format!("uid-{number}").into();
    Prepared::from_json(pod.to_string().as_bytes()).unwrap()
}

/// POSTs as many bodies of the same size, one after the other.
async fn bare(url: &str, pods: usize, bytes: usize, count: u64) {
    let client = Client::new(ClientSettings::default()).unwrap();
    let body = Bytes::from(vec![b'x'; bytes]);
    let begin = Instant::now();
    for _ in 0..count {
        let request = Request::post(url).body(body.clone()).unwrap();
        let answer = client.send(request).await.unwrap();
        assert_eq!(answer.status(), 204);
        answer.into_body().whole(1024).await.unwrap();
    }
    print(&format!("bare POST/{pods}"), count, begin);
}

fn print(name: &str, count: u64, begin: Instant) {
    let seconds = begin.elapsed().as_secs_f64();
    let rate = f64::from(u32::try_from(count).unwrap()) / seconds;
    println!("{name:<24} {rate:>9.0} a second, {:.3} ms each", 1e3 / rate);
}
