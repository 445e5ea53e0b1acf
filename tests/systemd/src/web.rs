//! A web server in a machine's network.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
};

use crate::machine::Machine;

/// The content; None for an error 500.
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
        // It ends with the test process.
        thread::spawn({
            let body = Arc::clone(&body);
            move || answer(&listener, &body)
        });
        Self { url, body }
    }

    /// Changes the content; None for an error 500.
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
        // The client may have closed the connection.
        write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
            .ok();
    }
}
