//! The server's errors: Kubernetes `Status` objects, printed as kubectl prints them.

use std::fmt::Write as _;

use serde_json::Value;

use super::terminal::{Escaped, print_error};

/// An error of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The API's reason: `NotFound`, `Invalid`; may be empty.
    pub reason: String,
    /// The description.
    pub message: String,
    /// The errors of single fields: the field and the description.
    pub causes: Vec<(String, String)>,
}

impl Status {
    /// Prints an error for each name that is not in a list. Returns whether there is one.
    pub(super) fn print_missing(kind: &str, wanted: &[String], is_listed: impl Fn(&str) -> bool) -> bool {
        let missing: Vec<&String> = wanted.iter().filter(|name| !is_listed(name)).collect();
        for name in &missing {
            let (reason, message) = ("NotFound".to_owned(), format!("{kind} \"{name}\" not found"));
            Self { code: 404, reason, message, ..Self::default() }.print(None);
        }
        !missing.is_empty()
    }

    /// The error in a response. A proxy may have sent something else than a `Status`:
    /// then the first line of the body is the message.
    pub fn read(code: u16, body: &[u8]) -> Self {
        if let Ok(object) = serde_json::from_slice::<Value>(body)
            && object["kind"] == "Status"
        {
            return Self::of(&object, code);
        }
        let text = String::from_utf8_lossy(body);
        let mut lines = text.lines().map(str::trim);
        // Of a list of checks the last one that failed says most.
        let failed = lines.clone().rfind(|line| line.starts_with("[-]"));
        let line = failed.or_else(|| lines.find(|line| !line.is_empty())).unwrap_or_default();
        let name = http::StatusCode::from_u16(code).ok().and_then(|code| code.canonical_reason());
        let mut message = format!("{code} {}", name.unwrap_or_default()).trim_end().to_owned();
        if !line.is_empty() {
            let _ = write!(message, ": {}", line.chars().take(200).collect::<String>());
        }
        Self { code, message, ..Self::default() }
    }

    /// The error in a `Status` object; `code` is used if the object has none.
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

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == 404 && (self.reason.is_empty() || self.reason == "NotFound")
    }

    /// The error for a terminal, without a newline at its end, after a context like
    /// `error when applying "web.yaml"`. An invalid object has one line per cause instead
    /// of the causes in the message.
    pub fn to_lines(&self, context: Option<&str>) -> String {
        let causes = if self.reason == "Invalid" { &*self.causes } else { &[] };
        let message = match self.message.split_once(" is invalid") {
            Some((object, _)) if !causes.is_empty() => format!("{object} is invalid"),
            _ => self.message.clone(),
        };
        let mut lines = match &*self.reason {
            "" => "Error from server: ".to_owned(),
            reason => format!("Error from server ({}): ", Escaped(reason)),
        };
        let context = context.map(|context| format!("{}: ", Escaped(context))).unwrap_or_default();
        let _ = write!(lines, "{context}{}", Escaped(&message));
        for (field, detail) in causes {
            let field = if field.is_empty() { String::new() } else { format!("{}: ", Escaped(field)) };
            let _ = write!(lines, "\n* {field}{}", Escaped(detail));
        }
        lines
    }

    /// Prints the error on standard error.
    pub(super) fn print(&self, context: Option<&str>) {
        print_error(self.to_lines(context));
        if self.code == 401 {
            print_error("podmux: give this agent's --token-file, or --client-cert and --client-key");
        }
    }
}
