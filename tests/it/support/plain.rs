//! A simple blocking HTTP/1.1 client with one connection over a Unix socket or another stream.

use std::{
    io::{self, BufRead as _, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::Value;

/// The timeout of an answer, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// An open connection.
pub struct Connection<S = UnixStream> {
    stream: BufReader<S>,
    /// The headers of each request, as whole lines.
    headers: String,
}

/// The response to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub code: u16,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Connection {
    pub fn unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self::over(stream, "Host: localhost\r\n".to_owned()))
    }
}

impl<S: Read + Write> Connection<S> {
    /// Uses an open stream, with the headers of each request: at least the host.
    pub fn over(stream: S, headers: String) -> Self {
        Self { stream: BufReader::new(stream), headers }
    }

    /// Sends a request and returns the whole response.
    pub fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<Answer> {
        self.ask_as(method, path, "application/json", body)
    }

    /// Sends a request with another media type and returns the whole response.
    pub fn ask_as(&mut self, method: &str, path: &str, media: &str, body: &[u8]) -> io::Result<Answer> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\n{}Content-Type: {media}\r\nContent-Length: {}\r\n\r\n",
            self.headers,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request)?;
        self.answer()
    }

    /// The first line of an endless response.
    pub fn first_line(&mut self, path: &str) -> io::Result<String> {
        write!(self.stream.get_mut(), "GET {path} HTTP/1.1\r\n{}\r\n", self.headers)?;
        while !self.line()?.is_empty() {}
        let size = self.line()?;
        assert!(usize::from_str_radix(&size, 16).is_ok(), "not a chunk: {size:?}");
        self.line()
    }

    /// The lines of an endless response, such as a watch.
    #[allow(dead_code, reason = "for the benchmarks")]
    pub fn lines(mut self, path: &str) -> io::Result<Lines<S>> {
        write!(self.stream.get_mut(), "GET {path} HTTP/1.1\r\n{}\r\n", self.headers)?;
        let status = self.line()?;
        if !status.contains(" 200 ") {
            return Err(io::Error::other(status));
        }
        while !self.line()?.is_empty() {}
        Ok(Lines { connection: self, read: Vec::new() })
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let status = self.line()?;
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let code = code.ok_or(io::ErrorKind::InvalidData)?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let header = |name: &str| headers.iter().find(|header| header.0 == name).map(|header| &*header.1);
        let mut body = Vec::new();
        if header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&self.line()?, 16).map_err(io::Error::other)?;
                self.take(size, &mut body)?;
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = header("content-length") {
            self.take(length.parse().map_err(io::Error::other)?, &mut body)?;
        }
        Ok(Answer { code, body })
    }

    fn take(&mut self, size: usize, body: &mut Vec<u8>) -> io::Result<()> {
        let begin = body.len();
        body.resize(begin + size, 0);
        self.stream.read_exact(&mut body[begin..])
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

/// The lines of a chunked response.
#[allow(dead_code, reason = "for the benchmarks")]
pub struct Lines<S> {
    connection: Connection<S>,
    /// The beginning of the next line.
    read: Vec<u8>,
}

#[allow(dead_code, reason = "for the benchmarks")]
impl<S: Read + Write> Lines<S> {
    /// The next line, with its line break.
    pub fn next(&mut self) -> io::Result<String> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.read[looked..].iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(looked + end + 1);
                let line = std::mem::replace(&mut self.read, rest);
                return String::from_utf8(line).map_err(io::Error::other);
            }
            looked = self.read.len();
            let size = usize::from_str_radix(&self.connection.line()?, 16).map_err(io::Error::other)?;
            self.connection.take(size, &mut self.read)?;
            self.connection.line()?;
            if size == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
