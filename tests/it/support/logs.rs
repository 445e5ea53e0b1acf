//! The log of a test.

use std::{
    future::Future,
    io::{self, Write},
    mem,
    sync::{Arc, Mutex},
};

use tokio::runtime::Builder;
use tracing::subscriber::set_default;
use tracing_subscriber::fmt::{MakeWriter, Subscriber};

/// The log so far.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// The lines that contain a text.
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// Runs a test and collects its log at level INFO, from its own thread and from the threads
/// for blocking work.
pub fn logged<F: Future>(test: impl FnOnce(Log) -> F) -> F::Output {
    collected(&mut Builder::new_current_thread(), test)
}

/// Runs a test on a given runtime and collects its log.
pub fn collected<F: Future>(runtime: &mut Builder, test: impl FnOnce(Log) -> F) -> F::Output {
    let log = Log::default();
    let collect = {
        let log = log.clone();
        move || {
            let subscriber = Subscriber::builder().with_ansi(false).with_writer(log.clone()).finish();
            set_default(subscriber)
        }
    };
    let _here = collect();
    // A thread's own subscriber goes with the thread.
    let runtime = runtime.enable_all().on_thread_start(move || mem::forget(collect())).build().unwrap();
    runtime.block_on(test(log))
}
