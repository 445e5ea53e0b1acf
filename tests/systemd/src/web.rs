//! A web server in a machine's network that gives what it is told to.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
};

use crate::machine::Machine;

/// What it answers; None is a server that fails.
type Body = Arc<Mutex<Option<String>>>;

pub struct Web {
    pub url: String,
    body: Body,
}

impl Web {
    pub fn serve(machine: &Machine, body: String) -> Self {
        let listener = machine.within(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let url = format!("http://{}/pods", listener.local_addr().unwrap());
        let body = Body::new(Mutex::new(Some(body)));
        // It ends with the test process; when the machine is gone nobody reaches it.
        thread::spawn({
            let body = Arc::clone(&body);
            move || answer(&listener, &body)
        });
        Self { url, body }
    }

    /// Another content, or an error 500.
    pub fn set(&self, body: Option<String>) {
        *self.body.lock().unwrap() = body;
    }
}

fn answer(listener: &TcpListener, body: &Body) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        let mut head = BufReader::new(&stream).lines();
        while head.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        let body = body.lock().unwrap().clone();
        let (status, body) = body.map_or(("500 Broken", String::new()), |body| ("200 OK", body));
        let length = body.len();
        // Who hangs up before the answer has no need of it.
        write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
            .ok();
    }
}
