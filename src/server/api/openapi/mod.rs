//! The `OpenAPI` documents: what `kubectl explain`, `apply` and `diff` read of the API's schemas.

use std::{
    io::{self, Read as _},
    iter,
    sync::{Arc, OnceLock},
};

use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use flate2::read::GzDecoder;
use futures_util::stream;
use http::{
    HeaderMap, HeaderName, StatusCode,
    header::{
        ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG,
        EXPIRES, IF_NONE_MATCH, LOCATION, VARY,
    },
};
use jiff::SignedDuration;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::form::{Form, JSON, Range, not_acceptable, ranges};
use crate::{
    hex::hex,
    server::{
        body::CHUNK,
        context::{Context, Params, json_response},
        status::ApiError,
    },
};

type Answer = Result<Response, ApiError>;

/// The media type of protobuf, as it is answered and as kubectl asks for it.
const PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
];

/// The documents of version 3, one for each group and version of the API.
static GROUPS: [(&str, Document); 3] = [
    ("/openapi/v3/api/v1", Document::new([JSON; 2], include_bytes!("core.json.gz"))),
    (
        "/openapi/v3/apis/authentication.k8s.io/v1",
        Document::new([JSON; 2], include_bytes!("authentication.json.gz")),
    ),
    (
        "/openapi/v3/apis/authorization.k8s.io/v1",
        Document::new([JSON; 2], include_bytes!("authorization.json.gz")),
    ),
];

/// The document of version 2, in both formats.
static WHOLE: [Document; 2] = [
    Document::new([JSON; 2], include_bytes!("v2.json.gz")),
    Document::new(PROTOBUF, include_bytes!("v2.pb.gz")),
];

/// How long a client may keep a document that it asked for by its hash: a year, as at an API server.
const KEPT: SignedDuration = SignedDuration::from_hours(365 * 24);

/// The documents with their paths. `tests/it/openapi.rs` cuts them out of those of a kube-apiserver.
///
/// kubectl also reads of them that the server validates fields itself, before it creates an object: it looks for
/// `fieldValidation` among the parameters of PATCH (`cli-runtime/pkg/resource/query_param_verifier_v3.go`).
pub(crate) fn routes() -> Router<Arc<Context>> {
    let router = Router::new().route("/openapi/v3", get(async |params: Params| index(&params))).route(
        "/openapi/v2",
        get(async |params: Params| Ok::<_, ApiError>(choose(&params, &WHOLE)?.answer(&params))),
    );
    GROUPS.iter().fold(router, |router, group| {
        let answer =
            async move |State(server): State<Arc<Context>>, params: Params| of_group(&server, group, &params);
        router.route(group.0, get(answer))
    })
}

/// Where the documents of version 3 are.
fn index(params: &Params) -> Answer {
    Form::new(params, false)?;
    let entry = |group: &(&str, Document)| {
        let name = group.0.trim_start_matches("/openapi/v3/").to_owned();
        (name, json!({"serverRelativeURL": url(group)}))
    };
    let paths: Map<String, Value> = GROUPS.iter().map(entry).collect();
    Ok(json_response(&json!({"paths": paths})))
}

/// The path of a document with its hash.
fn url((path, document): &(&str, Document)) -> String {
    format!("{path}?hash={}", document.hash())
}

/// The document of a group. One with a hash never changes, so that a client can keep it.
fn of_group(server: &Context, group: &(&str, Document), params: &Params) -> Answer {
    let document = choose(params, std::slice::from_ref(&group.1))?;
    let hash = params.option("hash");
    if hash.is_empty() {
        return Ok(document.answer(params));
    }
    if hash != document.hash() {
        return Ok((StatusCode::MOVED_PERMANENTLY, [(LOCATION, url(group))]).into_response());
    }
    let until = server.view.host.clock.now().saturating_add(KEPT).unwrap_or_default();
    let until = until.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let kept = [(CACHE_CONTROL, "public, immutable".to_owned()), (EXPIRES, until)];
    Ok((kept, document.answer(params)).into_response())
}

/// The document that a client prefers.
fn choose<'d>(params: &Params, documents: &'d [Document]) -> Result<&'d Document, ApiError> {
    let types = documents.iter().flat_map(|document| document.media_types.map(|name| (name, document)));
    let mut ranges = ranges(&params.headers, ACCEPT);
    if ranges.is_empty() {
        ranges.push(Range::new("*/*"));
    }
    let found = ranges.iter().find_map(|range| types.clone().find(|(name, _)| range.has(name)));
    found.map(|(_, document)| document).ok_or_else(|| {
        not_acceptable(&documents.iter().map(|document| document.media_types[0]).collect::<Vec<_>>())
    })
}

/// A document, compressed as it is in the binary.
struct Document {
    media_types: [&'static str; 2],
    gzip: &'static [u8],
    hash: OnceLock<String>,
}

impl Document {
    const fn new(media_types: [&'static str; 2], gzip: &'static [u8]) -> Self {
        Self { media_types, gzip, hash: OnceLock::new() }
    }

    fn hash(&self) -> &str {
        self.hash.get_or_init(|| hex(&Sha256::digest(self.gzip)))
    }

    /// The document: as it is stored if the client accepts that, and otherwise decompressed while it is sent.
    fn answer(&self, params: &Params) -> Response {
        let is_compressed = ranges(&params.headers, ACCEPT_ENCODING).iter().any(|range| range.has("gzip"));
        // The same document in another form has another tag, unless the tag is weak.
        let weak = if is_compressed { "W/" } else { "" };
        let headers = [
            (CONTENT_TYPE, self.media_types[0].to_owned()),
            (ETAG, format!("{weak}\"{}\"", self.hash())),
            (VARY, "Accept, Accept-Encoding".to_owned()),
        ];
        if is_compressed {
            let encoded = (CONTENT_ENCODING, "gzip".to_owned());
            return self.unless_known(params, headers.into_iter().chain([encoded]), || self.gzip.into());
        }
        let length = (CONTENT_LENGTH, self.length().to_string());
        let chunks = || Body::from_stream(stream::iter(inflated(self.gzip)));
        self.unless_known(params, headers.into_iter().chain([length]), chunks)
    }

    /// The length in bytes, with which the compressed data ends.
    fn length(&self) -> u32 {
        self.gzip.last_chunk().copied().map_or(0, u32::from_le_bytes)
    }

    /// A response with these headers; 304 without a body if the client has the document.
    fn unless_known(
        &self,
        params: &Params,
        headers: impl IntoIterator<Item = (HeaderName, String)>,
        body: impl FnOnce() -> Body,
    ) -> Response {
        let given = params.headers.get_all(IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
        let is_own = |tag: &str| tag == "*" || tag.trim_start_matches("W/").trim_matches('"') == self.hash();
        let is_known = given.flat_map(|value| value.split(',')).any(|tag| is_own(tag.trim()));
        let (code, body) =
            if is_known { (StatusCode::NOT_MODIFIED, Body::empty()) } else { (StatusCode::OK, body()) };
        let is_sent = |(name, _): &(HeaderName, String)| !is_known || [ETAG, VARY].contains(name);
        let headers = headers.into_iter().filter(is_sent);
        let headers: HeaderMap =
            headers.filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect();
        (code, headers, body).into_response()
    }
}

/// A document in pieces as they are decompressed: a client that reads slowly uses the memory of one.
fn inflated(gzip: &'static [u8]) -> impl Iterator<Item = io::Result<Bytes>> {
    let mut document = GzDecoder::new(gzip);
    iter::from_fn(move || {
        let mut piece = Vec::with_capacity(CHUNK);
        let read = document.by_ref().take(CHUNK as u64).read_to_end(&mut piece);
        read.map(|length| (length > 0).then(|| Bytes::from(piece))).transpose()
    })
}
