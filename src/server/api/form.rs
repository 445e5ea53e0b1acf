//! The forms in which objects are answered: as they are, as protobuf, their metadata alone, or a table for kubectl.

use std::iter;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::ACCEPT};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    protobuf,
    resource::{Column, Reading, Resource},
};
use crate::{
    manifest::protobuf::MEDIA_TYPE,
    server::{context::Params, status::ApiError},
};

/// The media type of answers.
pub(super) const JSON: &str = "application/json";

/// The form of objects in a response, from `Accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    /// The object as it is, such as a `v1.Pod`.
    Object,
    /// The same as protobuf.
    Protobuf,
    /// `PartialObjectMetadata`.
    Metadata,
    /// `Table`.
    Table(Included),
}

/// What a row of a table has of its object: `includeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Included {
    Nothing,
    Metadata,
    Object,
}

impl Form {
    /// The best form that the client accepts, of objects or, if `is_list`, of lists of them.
    ///
    /// # Errors
    /// 406 if the client accepts none; 400 if `includeObject` is invalid.
    pub(crate) fn new(params: &Params, is_list: bool) -> Result<Self, ApiError> {
        Self::accepted(params, is_list, false)
    }

    /// The same for a resource, which may have protobuf.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of<O: Resource>(params: &Params, is_list: bool) -> Result<Self, ApiError> {
        Self::accepted(params, is_list, O::HAS_PROTOBUF)
    }

    fn accepted(params: &Params, is_list: bool, has_protobuf: bool) -> Result<Self, ApiError> {
        let included = match params.option("includeObject") {
            "" | "Metadata" => Some(Included::Metadata),
            "None" => Some(Included::Nothing),
            "Object" => Some(Included::Object),
            _ => None,
        };
        match (Self::best(&params.headers, |range| range.form(is_list, has_protobuf)), included) {
            (Some(Self::Table(_)), Some(included)) => Ok(Self::Table(included)),
            (Some(Self::Table(_)), None) => Err(ApiError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {:?}: must be 'Metadata', 'Object', 'None', or empty",
                params.option("includeObject")
            ))),
            (Some(form), _) => Ok(form),
            (None, _) if has_protobuf => Err(not_acceptable(&[JSON, MEDIA_TYPE])),
            (None, _) => Err(not_acceptable(&[JSON])),
        }
    }

    /// The value of `Content-Type`.
    pub(super) fn content_type(self, is_watch: bool) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Protobuf if is_watch => "application/vnd.kubernetes.protobuf;stream=watch",
            Self::Protobuf => MEDIA_TYPE,
            _ => JSON,
        })
    }

    /// The best form of those that a client accepts. Without `Accept` it is the object.
    pub(super) fn best(headers: &HeaderMap, form: impl Fn(&Range<'_>) -> Option<Self>) -> Option<Self> {
        let ranges = ranges(headers, ACCEPT);
        if ranges.is_empty() {
            return Some(Self::Object);
        }
        ranges.iter().filter(|range| range.quality > 0.0).find_map(form)
    }

    /// The beginning of a list of this kind with this metadata. The objects follow, separated by commas, then `]}`.
    pub(super) fn list_head(self, metadata: &str, kind: &str, columns: &[Column]) -> String {
        let (kind, version) = match self {
            Self::Object | Self::Protobuf => (kind, "v1"),
            Self::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1"),
            Self::Table(_) => return table_head(metadata, Some(columns)),
        };
        format!(r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{metadata},"items":["#)
    }

    /// An object of a list. One of a list in protobuf is JSON before the list is encoded.
    pub(crate) fn item<O: Resource>(self, object: &O, reading: Reading) -> Vec<Bytes> {
        match self {
            Self::Object | Self::Protobuf => object.text(reading),
            Self::Metadata => metadata(object, reading),
            Self::Table(included) => row(object, reading, included),
        }
    }

    /// An object that is not in a list. The first table of a stream has columns.
    pub(crate) fn object<O: Resource>(self, object: &O, reading: Reading, has_columns: bool) -> Vec<Bytes> {
        if self == Self::Protobuf {
            return vec![protobuf::object(&object.text(reading))];
        }
        if !matches!(self, Self::Table(_)) {
            return self.item(object, reading);
        }
        let version = reading.version.unwrap_or_else(|| object.version());
        let columns = has_columns.then_some(O::COLUMNS);
        let head = table_head(&format!(r#"{{"resourceVersion":"{version}"}}"#), columns);
        let item = self.item(object, reading);
        iter::once(head.into()).chain(item).chain([Bytes::from_static(b"]}")]).collect()
    }

    /// The object of a bookmark: one with a resourceVersion alone, and with a mark at the end of the
    /// initial events.
    pub(crate) fn bookmark<O: Resource>(self, version: u64, ends_initial_events: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if ends_initial_events {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let partial =
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
        let mut object = O::empty();
        object["metadata"] = metadata;
        let object = match self {
            Self::Object => object,
            Self::Protobuf => return protobuf::object(&[object.to_string().into()]),
            Self::Metadata => partial,
            Self::Table(_) => {
                let cells = O::cells(&object, None, Timestamp::UNIX_EPOCH);
                let head = table_head(&format!(r#"{{"resourceVersion":"{version}"}}"#), None);
                return format!("{head}{}]}}", json!({"cells": cells, "object": partial})).into();
            }
        };
        object.to_string().into()
    }
}

/// 406: a client accepts none of these media types.
pub(super) fn not_acceptable(types: &[&str]) -> ApiError {
    let message = format!("only the following media types are accepted: {}", types.join(", "));
    ApiError::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
}

/// What a client accepts in a header such as `Accept`, the best first. Of equal ones the first is the best.
pub(crate) fn ranges(headers: &HeaderMap, name: HeaderName) -> Vec<Range<'_>> {
    let accepted = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let ranges = accepted.flat_map(|value| value.split(',')).map(str::trim).filter(|range| !range.is_empty());
    let mut ranges: Vec<Range<'_>> = ranges.map(Range::new).collect();
    ranges.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    ranges
}

/// One range of `Accept`, such as `application/json;as=Table;v=v1;g=meta.k8s.io;q=0.5`.
pub(crate) struct Range<'a> {
    pub(crate) media_type: &'a str,
    target: [&'a str; 3],
    quality: f64,
}

impl<'a> Range<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let mut range = Self { media_type: parts.next().unwrap_or_default(), target: [""; 3], quality: 1.0 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "as" => range.target[0] = value,
                "v" => range.target[1] = value,
                "g" => range.target[2] = value,
                "q" => range.quality = value.parse().unwrap_or(1.0),
                _ => {}
            }
        }
        range
    }

    /// Whether it includes a media type.
    pub(super) fn has(&self, media_type: &str) -> bool {
        self.quality > 0.0 && [media_type, "application/*", "*/*"].contains(&self.media_type)
    }

    /// The form, if there is such a one.
    pub(super) fn form(&self, is_list: bool, has_protobuf: bool) -> Option<Form> {
        if self.media_type == MEDIA_TYPE {
            return (has_protobuf && self.target[0].is_empty()).then_some(Form::Protobuf);
        }
        if !self.has(JSON) {
            return None;
        }
        match self.target {
            ["", ..] => Some(Form::Object),
            ["Table", "v1", "meta.k8s.io"] => Some(Form::Table(Included::Metadata)),
            ["PartialObjectMetadata", "v1", "meta.k8s.io"] if !is_list => Some(Form::Metadata),
            ["PartialObjectMetadataList", "v1", "meta.k8s.io"] if is_list => Some(Form::Metadata),
            _ => None,
        }
    }
}

/// The beginning of a table, up to its rows.
pub(super) fn table_head(metadata: &str, columns: Option<&[Column]>) -> String {
    let column = |(name, format, priority, description): &Column| json!({"name": name, "type": "string", "format": format, "description": description, "priority": priority});
    let columns: Option<Vec<Value>> = columns.map(|columns| columns.iter().map(column).collect());
    format!(
        r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"columnDefinitions":{},"rows":["#,
        json!(columns)
    )
}

fn metadata<O: Resource>(object: &O, reading: Reading) -> Vec<Bytes> {
    let head = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#;
    let metadata = object.metadata(reading);
    iter::once(Bytes::from_static(head)).chain(metadata).chain([Bytes::from_static(b"}")]).collect()
}

/// A row as kube-apiserver has it (`pkg/printers/internalversion/printers.go`).
fn row<O: Resource>(object: &O, reading: Reading, included: Included) -> Vec<Bytes> {
    let text: Value = serde_json::from_slice(&object.text(reading).concat()).unwrap_or_default();
    let cells = O::cells(&text, Some(object), reading.now);
    let head = format!(r#"{{"cells":{},{}"object":"#, json!(cells), O::conditions(&text));
    let object = match included {
        Included::Nothing => vec![Bytes::from_static(b"null")],
        Included::Metadata => metadata(object, reading),
        Included::Object => object.text(reading),
    };
    iter::once(head.into()).chain(object).chain([Bytes::from_static(b"}")]).collect()
}
