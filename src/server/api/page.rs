//! Lists in pages: `limit` and `continue`.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::select::Selector;
use crate::pod::{Entry, Pod, PodKey};
use crate::server::status::ApiError;

/// What a list's request says about pages.
#[derive(Clone, Debug, Default)]
pub(in crate::server) struct PageRequest {
    /// How many pods at most; all if absent.
    limit: Option<usize>,
    /// Where the page before ended.
    token: Option<Token>,
}

/// What `metadata.continue` holds, as JSON in base64; nobody but us reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Token {
    /// The number in the update stream at which the first page was true. All
    /// pages bear it: whoever has them all and goes on with the updates from
    /// there is right, whatever changed meanwhile, for replaying an update
    /// twice does no harm.
    seq: u64,
    /// The key of the last pod of the page before, `namespace/name`.
    after: String,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::server) struct Page {
    /// Its pods, by `namespace/name`.
    pub(in crate::server) pods: Vec<Arc<Pod>>,
    /// `metadata.resourceVersion`.
    pub(in crate::server) seq: u64,
    /// `metadata.continue`: how to ask for the next one, if there is one.
    pub(in crate::server) next: Option<String>,
    /// `metadata.remainingItemCount`: how many pods come after, if that is known.
    pub(in crate::server) remaining: Option<usize>,
}

impl PageRequest {
    /// Reads `limit` and `continue`; empty is absent.
    ///
    /// # Errors
    /// 400 if the limit is no number or the token none of ours.
    pub(in crate::server) fn new(limit: &str, token: &str) -> Result<Self, ApiError> {
        let limit = match limit {
            "" => 0,
            limit => limit.parse::<i64>().map_err(|_| {
                ApiError::bad_request(format!("invalid limit {limit:?}: a number of pods is expected"))
            })?,
        };
        // As at the API, less than one is no limit.
        let limit = usize::try_from(limit).ok().filter(|limit| *limit > 0);
        let token = match token {
            "" => None,
            token => Some(Token::read(token).ok_or_else(|| {
                ApiError::bad_request(
                    "continue key is not valid: take it from metadata.continue of the page before",
                )
            })?),
        };
        Ok(Self { limit, token })
    }

    /// Whether it is a later page of a list.
    pub(in crate::server) fn goes_on(&self) -> bool {
        self.token.is_some()
    }

    /// Cuts the page out of the pods that are wanted at a number of the update
    /// stream, which come sorted by key.
    ///
    /// # Errors
    /// 410 if the token is of a later number: the stream began anew since.
    pub(in crate::server) fn cut<'e>(
        &self,
        entries: impl Iterator<Item = (&'e PodKey, &'e Entry)>,
        selector: &Selector,
        seq: u64,
    ) -> Result<Page, ApiError> {
        if self.token.as_ref().is_some_and(|token| token.seq > seq) {
            let message = "the continue token is of an earlier state directory: list again without it";
            return Err(ApiError::new(StatusCode::GONE, "Expired", message));
        }
        let after = self.token.as_ref().map_or("", |token| &token.after);
        let seq = self.token.as_ref().map_or(seq, |token| token.seq);
        let mut matching =
            entries.filter(|(key, entry)| key.as_str() > after && selector.matches(entry.pod())).peekable();
        let limit = self.limit.unwrap_or(usize::MAX);
        let pods: Vec<Arc<Pod>> =
            matching.by_ref().take(limit).map(|(_, entry)| entry.pod().clone()).collect();
        let (mut next, mut remaining) = (None, None);
        if let Some(last) = pods.last()
            && matching.peek().is_some()
        {
            next = Some(Token { seq, after: last.key().to_string() }.write());
            // As at the API: to count what a selector leaves would cost as much as to list it.
            remaining = selector.is_empty().then(|| matching.count());
        }
        Ok(Page { pods, seq, next, remaining })
    }
}

impl Token {
    fn read(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }

    fn write(&self) -> String {
        // A number and a text: writing them to memory cannot fail.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}
