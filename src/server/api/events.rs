//! `v1.Event`s: what the agent has observed of pods and of itself, for reading.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use http::HeaderMap;

use super::{
    form::Form,
    objects,
    page::PageRequest,
    watch::{Frames, Start, watch},
};
use crate::{
    events::Event,
    server::{
        context::{Context, Params},
        slots::Watchers,
        status::ApiError,
    },
};

type Held = Arc<Event>;

/// `GET /api/v1/events` and `GET /api/v1/namespaces/{namespace}/events`: a list or a watch.
pub(crate) async fn list(
    State(server): State<Arc<Context>>,
    Extension(watchers): Extension<Watchers>,
    Extension(frames): Extension<Arc<Frames>>,
    params: Params,
) -> Result<Response, ApiError> {
    let events = server.view.events.held();
    if params.flag("watch") {
        let request = objects::watch_request::<Held>(&server, watchers, frames, &params)?;
        let all = events.by_key.values().filter(|event| request.scope.has(*event));
        let all = all.filter(|_| request.options.begins_with_all).map(|event| (event.clone(), None));
        let start = Start { initial: all.collect(), current: events.seq, warnings: HeaderMap::new() };
        let journal = server.view.events.journal().clone();
        return watch(server, &journal, request, start);
    }
    let form = Form::new(&params, true)?;
    let page = PageRequest::new(&params)?;
    let scope = objects::scope::<Held>(&params)?;
    objects::check_version(&params, page.is_continued(), events.seq)?;
    page.check(server.view.events.journal())?;
    let page = page.cut(events.by_key.values().cloned(), &scope, events.seq);
    let reading = server.reading();
    Ok(objects::object_list(server.reads.clone(), form, page, move |event| form.item(event, reading)))
}

/// `GET /api/v1/namespaces/{namespace}/events/{name}`: an event.
pub(crate) async fn read(State(server): State<Arc<Context>>, params: Params) -> Result<Response, ApiError> {
    let wanted = params.number::<u64>("resourceVersion")?;
    let form = Form::new(&params, false)?;
    let key = params.key();
    let events = server.view.events.held();
    objects::check_given(wanted, events.seq)?;
    let event = events.by_key.get(&key).ok_or_else(|| ApiError::not_found("events", key.name()))?;
    Ok(objects::response(form, event, server.reading()))
}
