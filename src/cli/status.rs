//! What the server says when it refuses: a Kubernetes `Status`, told as kubectl tells it.

use std::fmt::Write as _;

use serde_json::Value;

use super::terminal::Shown;

/// A refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The API's word for it: `NotFound`, `Invalid`; may be empty.
    pub reason: String,
    /// What is wrong, for reading.
    pub message: String,
    /// What is wrong with single fields: the field and why.
    pub causes: Vec<(String, String)>,
}

impl Status {
    /// What an answer of this code and body refuses. Somebody between us and
    /// the server may have answered with something else than a Status: then the
    /// first line of that is the message.
    #[must_use]
    pub fn read(code: u16, body: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(body) {
            Ok(object) if object["kind"] == "Status" => Self::of(&object, code),
            _ => {
                let text = String::from_utf8_lossy(body);
                let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
                let name = http::StatusCode::from_u16(code).ok().and_then(|code| code.canonical_reason());
                let mut message = format!("{code} {}", name.unwrap_or_default()).trim_end().to_owned();
                if !line.is_empty() {
                    let _ = write!(message, ": {}", line.chars().take(200).collect::<String>());
                }
                Self { code, message, ..Self::default() }
            }
        }
    }

    /// The refusal that a Status object tells; `code` if it does not say one itself.
    #[must_use]
    pub fn of(object: &Value, code: u16) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let causes = object["details"]["causes"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            code: object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(code),
            reason: text(&object["reason"]),
            message: text(&object["message"]),
            causes: causes.iter().map(|cause| (text(&cause["field"]), text(&cause["message"]))).collect(),
        }
    }

    /// Whether what was asked for is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code == 404 && (self.reason.is_empty() || self.reason == "NotFound")
    }

    /// The refusal for a terminal, without a newline at its end; `doing` says
    /// at what it happened: `error when applying "web.yaml"`. The causes of what
    /// is invalid stand on a line each and not in the message as well; those of
    /// anything else are in the message.
    #[must_use]
    pub fn told(&self, doing: Option<&str>) -> String {
        let causes = if self.reason == "Invalid" { &*self.causes } else { &[] };
        let message = match self.message.split_once(" is invalid") {
            Some((what, _)) if !causes.is_empty() => format!("{what} is invalid"),
            _ => self.message.clone(),
        };
        let mut told = match &*self.reason {
            "" => "Error from server: ".to_owned(),
            reason => format!("Error from server ({}): ", Shown(reason)),
        };
        let doing = doing.map(|doing| format!("{}: ", Shown(doing))).unwrap_or_default();
        let _ = write!(told, "{doing}{}", Shown(&message));
        for (field, why) in causes {
            let field = if field.is_empty() { String::new() } else { format!("{}: ", Shown(field)) };
            let _ = write!(told, "\n* {field}{}", Shown(why));
        }
        told
    }
}
