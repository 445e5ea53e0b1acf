//! Any bytes as the response of an API server in protobuf, in chunks.
//!
//! Nothing panics, the chunk sizes make no difference, and the parts are no longer than the body.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

use libfuzzer_sys::fuzz_target;
use podmux::source::api::{
    json_splitter::{BodyShape, Part, SplitError},
    splitter::Splitter,
};
use podmux_fuzz::bounded;

fuzz_target!(|input: &[u8]| {
    // The first byte is the length of the chunks.
    let Some((chunk, body)) = input.split_first() else { return };
    let chunk = usize::from(*chunk) + 1;
    for shape in [BodyShape::Events, BodyShape::List] {
        let (parts, end) = bounded(body.len(), || split(shape, body, body.len().max(1)));
        let length: usize =
            parts.iter().map(|part| if let Part::Object(part) = part { part.len() } else { 0 }).sum();
        assert!(length <= body.len());
        for length in [1, chunk] {
            assert_eq!(bounded(body.len(), || split(shape, body, length)), (parts.clone(), end.clone()));
        }
    }
});

fn split(shape: BodyShape, body: &[u8], chunk: usize) -> (Vec<Part>, Result<(), SplitError>) {
    let mut splitter = Splitter::new(true, shape);
    let mut parts = Vec::new();
    for chunk in body.chunks(chunk) {
        splitter.push(chunk);
        loop {
            match splitter.next() {
                Ok(Some(part)) => parts.push(part),
                Ok(None) => break,
                Err(error) => {
                    assert!(!error.to_string().chars().any(char::is_control), "{error}");
                    return (parts, Err(error));
                }
            }
        }
        assert!(splitter.capacity() <= 2 * body.len() + 64, "{} for {}", splitter.capacity(), body.len());
    }
    (parts, splitter.finish())
}
