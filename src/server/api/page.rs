//! Lists in pages: `limit` and `continue`.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{resource::Resource, select::Scope};
use crate::{
    history::Journal,
    server::{context::Params, status::ApiError},
};

/// The page of a list that a request asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageRequest {
    /// The maximal number of objects; all if absent.
    limit: Option<usize>,
    /// Where the previous page ended.
    token: Option<ContinueToken>,
}

/// The content of `metadata.continue`, as JSON in base64. It is opaque to clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ContinueToken {
    /// The number in the update stream at which the first page was read. All pages have it as
    /// their version: a client that has all pages continues with the updates from there. It
    /// receives some changes twice, which does no harm.
    seq: u64,
    /// The key of the last object of the previous page, `namespace/name`.
    after: String,
}

/// One page of a list.
#[derive(Clone, Debug)]
pub(crate) struct Page<O> {
    /// The objects by `namespace/name`.
    pub(crate) objects: Vec<O>,
    /// `metadata.resourceVersion`.
    pub(crate) seq: u64,
    /// `metadata.continue`: the token of the next page, if there is one.
    pub(crate) next: Option<String>,
    /// `metadata.remainingItemCount`: how many objects follow, if that is known.
    pub(crate) remaining: Option<usize>,
}

impl PageRequest {
    /// Reads `limit` and `continue`; an empty token is absent.
    ///
    /// # Errors
    /// 400 if the limit is not a number or the token is invalid.
    pub(crate) fn new(params: &Params) -> Result<Self, ApiError> {
        // As at the API, less than one is no limit.
        let limit = params.number::<i64>("limit")?;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0);
        let token = match params.option("continue") {
            "" => None,
            token => Some(ContinueToken::decode(token).ok_or_else(|| {
                let message = "continue key is not valid: use metadata.continue of the previous page";
                ApiError::bad_request(message)
            })?),
        };
        Ok(Self { limit, token })
    }

    /// The most objects on it.
    pub(crate) fn most(&self) -> usize {
        self.limit.unwrap_or(usize::MAX)
    }

    /// Whether this is not the first page.
    pub(crate) fn is_continued(&self) -> bool {
        self.token.is_some()
    }

    /// Checks that the journal holds what happened since the first page: with it a client brings all pages to
    /// the same state.
    ///
    /// # Errors
    /// 410 if it does not, in an API server's words, with a token for the rest as it is now.
    pub(crate) fn check<O: Resource>(&self, journal: &Journal<O>) -> Result<(), ApiError> {
        let expired = |token: &&ContinueToken| journal.changes(token.seq).is_err();
        let Some(token) = self.token.as_ref().filter(expired) else { return Ok(()) };
        let message = "The provided continue parameter is too old to display a consistent list result. You can start \
            a new list without the continue parameter, or use the continue token in this response to retrieve the \
            remainder of the results. Continuing with the provided token results in an inconsistent list - objects \
            that were created, modified, or deleted between the time the first chunk was returned and now may show up \
            in the list.";
        let now = ContinueToken { seq: journal.last(), after: token.after.clone() };
        Err(ApiError::new(StatusCode::GONE, "Expired", message).continued(now.encode()))
    }

    /// Cuts the page out of all objects, sorted by key, at a number of the update stream.
    pub(crate) fn cut<O: Resource>(
        &self,
        objects: impl Iterator<Item = O>,
        scope: &Scope,
        seq: u64,
    ) -> Page<O> {
        let after = self.token.as_ref().map_or("", |token| &token.after);
        let seq = self.token.as_ref().map_or(seq, |token| token.seq);
        let follows = |object: &O| object.key().as_str() > after && scope.has(object);
        let mut matching = objects.filter(follows).peekable();
        let objects: Vec<O> = matching.by_ref().take(self.most()).collect();
        let (mut next, mut remaining) = (None, None);
        if let Some(last) = objects.last()
            && matching.peek().is_some()
        {
            next = Some(ContinueToken { seq, after: last.key().to_string() }.encode());
            // As in the API: to count with a selector costs as much as to list.
            remaining = scope.selector.is_empty().then(|| matching.count());
        }
        Page { objects, seq, next, remaining }
    }
}

impl ContinueToken {
    fn decode(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }

    fn encode(&self) -> String {
        // Writing a number and a text to memory cannot fail.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}
