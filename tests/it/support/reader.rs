//! A reader of a watch.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::{files::soon, server::TestServer};

/// The events of a watch, one after the other.
pub struct Reader {
    pub body: Body,
    read: Vec<u8>,
}

impl Reader {
    pub fn of(
        body: impl hyper::body::Body<Data = Bytes, Error: Into<axum::BoxError>> + Send + 'static,
    ) -> Self {
        Self { body: Body::new(body), read: Vec::new() }
    }

    pub async fn open(server: &TestServer, path: &str) -> Self {
        Self::open_with(server, path, &[]).await
    }

    pub async fn open_with(server: &TestServer, path: &str, headers: &[(&str, &str)]) -> Self {
        let answer = server.open(&format!("GET {path}"), headers, "").await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "application/json");
        Self::of(answer.into_body())
    }

    /// The next event; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(at) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=at).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = soon(self.body.frame()).await?.unwrap().into_data().unwrap();
            self.read.extend(frame);
        }
    }

    /// `TYPE name` of the next event.
    pub async fn brief(&mut self) -> String {
        brief(&self.next().await.expect("the watch continues"))
    }

    pub async fn briefs<const COUNT: usize>(&mut self) -> [String; COUNT] {
        let mut briefs = [const { String::new() }; COUNT];
        for brief in &mut briefs {
            *brief = self.brief().await;
        }
        briefs
    }

    /// The next event: its type, its name, and a part of its object.
    pub async fn brief_with(&mut self, part: &str) -> String {
        let event = self.next().await.expect("the watch continues");
        let part = event["object"].pointer(part).and_then(Value::as_str).unwrap_or_default();
        format!("{} {part}", brief(&event))
    }
}

/// `TYPE name` of an event; the code of an error instead of a name.
pub fn brief(event: &Value) -> String {
    let object = &event["object"];
    let what = object["metadata"]["name"].as_str().map_or_else(|| object["code"].to_string(), str::to_owned);
    format!("{} {what}", event["type"].as_str().unwrap())
}
