//! JSON values as YAML in kubectl's style: block style, the items of a list as far left as its key.

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_saphyr::{DoubleQuoted, ser_error::Error, ser_options, to_string_with_options};

use crate::escaped::turns;

/// A value as one YAML document, with a newline at its end. Every reader of YAML 1.1 or 1.2
/// reads the same value from it.
///
/// # Errors
/// If the serializer fails; no JSON value is known for which it does.
pub fn document(value: &Value) -> Result<String, Error> {
    let options = ser_options! { folded_wrap_chars: usize::MAX };
    to_string_with_options(&Node(value), options)
}

/// A value whose texts can be read by Go's YAML reader (kubectl), too.
struct Node<'a>(&'a Value);

impl Serialize for Node<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(items) => serializer.collect_seq(items.iter().map(Node)),
            Value::Object(fields) => {
                serializer.collect_map(fields.iter().map(|(name, value)| (name, Node(value))))
            }
            // Go's reader takes the tab that begins a block of text for indentation. What is escaped on a terminal
            // needs quotes.
            Value::String(text)
                if text.trim_start_matches('\n').starts_with('\t') || text.contains(turns) =>
            {
                DoubleQuoted(text).serialize(serializer)
            }
            scalar => scalar.serialize(serializer),
        }
    }
}
