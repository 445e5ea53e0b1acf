//! An API server's response in protobuf is split into objects, whatever its chunks are.

use podmux::{
    manifest::protobuf::{self, MAGIC},
    source::api::{
        json_splitter::{BodyShape, ListEnd, MAX_OBJECT, Part, SplitError},
        splitter::Splitter,
    },
};
use serde_json::{Value, json};

/// The parts of a body in chunks of this length, and how it ends.
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
                    assert_eq!(splitter.next(), Err(error.clone()), "the error is repeated");
                    assert_eq!(splitter.finish(), Err(error.clone()));
                    return (parts, Err(error));
                }
            }
        }
    }
    (parts, splitter.finish())
}

/// The parts of a body, which chunks of any length must give.
fn whole(shape: BodyShape, body: &[u8]) -> (Vec<Part>, Result<(), SplitError>) {
    let parts = split(shape, body, body.len().max(1));
    for chunk in [1, 2, 3, 7] {
        assert_eq!(split(shape, body, chunk), parts, "in chunks of {chunk}");
    }
    parts
}

fn pod(name: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": {"containers": []}})
}

fn list(names: &[&str]) -> Vec<u8> {
    let items: Vec<Value> = names.iter().map(|name| pod(name)).collect();
    let metadata = json!({"resourceVersion": "7", "continue": "c"});
    protobuf::encode(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}))
        .unwrap()
}

fn objects(parts: &[Part]) -> Vec<&[u8]> {
    let objects = parts.iter().filter_map(|part| match part {
        Part::Object(bytes) => Some(&**bytes),
        Part::End(_) => None,
    });
    objects.collect()
}

#[test]
fn a_list_is_its_items_and_an_end() {
    let (parts, end) = whole(BodyShape::List, &list(&["a", "b"]));
    assert_eq!(end, Ok(()));
    let expected = [protobuf::message(&pod("a")).unwrap(), protobuf::message(&pod("b")).unwrap()];
    assert_eq!(objects(&parts), expected);
    let Some(Part::End(ListEnd { api_version, kind, resource_version, continue_token })) = parts.last()
    else {
        panic!("{parts:?}")
    };
    assert_eq!([api_version, kind, resource_version, continue_token], ["v1", "PodList", "7", "c"]);
}

#[test]
fn a_list_is_complete_with_its_last_item_whatever_follows() {
    let body = [&*list(&[]), b"\xff\xff\xff"].concat();
    let (parts, end) = whole(BodyShape::List, &body);
    assert_eq!((parts.len(), end), (1, Ok(())));
}

#[test]
fn events_are_frames_with_a_length() {
    let frames = [protobuf::frame("ADDED", b"one"), protobuf::frame("BOOKMARK", b""), vec![0, 0, 0, 0]];
    let (parts, end) = whole(BodyShape::Events, &frames.concat());
    assert_eq!(end, Ok(()));
    assert_eq!(objects(&parts), [&frames[0][4..], &frames[1][4..], b""]);
    let event = protobuf::WatchEvent::read(objects(&parts)[0]).unwrap();
    assert_eq!((&*event.kind, event.object), ("ADDED", &b"one"[..]));
}

#[test]
fn a_body_that_is_cut_off_anywhere_is_incomplete() {
    let body = list(&["a", "b"]);
    // The envelope has four bytes more after the list.
    for length in 0..body.len() - 4 {
        let (_, end) = split(BodyShape::List, &body[..length], 5);
        assert_eq!(end, Err(SplitError::Incomplete), "after {length} bytes");
    }
    let frame = protobuf::frame("ADDED", b"one");
    for length in 1..frame.len() {
        assert_eq!(split(BodyShape::Events, &frame[..length], 5).1, Err(SplitError::Incomplete), "{length}");
    }
}

#[test]
fn an_object_over_the_limit_is_rejected_before_it_arrives() {
    let most = u32::try_from(MAX_OBJECT).unwrap();
    let frame = |length: u32| split(BodyShape::Events, &length.to_be_bytes(), 4).1;
    assert_eq!((frame(most), frame(most + 1)), (Err(SplitError::Incomplete), Err(SplitError::TooLarge)));
    // A list of 2^40 bytes with an item of 2^35.
    let head = [MAGIC, b"\x12\x80\x80\x80\x80\x80\x80\x01", b"\x12\x80\x80\x80\x80\x80\x01"].concat();
    assert_eq!(whole(BodyShape::List, &head).1, Err(SplitError::TooLarge));
}

#[test]
fn what_is_no_protobuf_of_an_api_server_is_malformed() {
    let error = |body: &[u8]| match whole(BodyShape::List, body).1 {
        Err(SplitError::MalformedProtobuf(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(error(b"<html>").contains("does not begin with"));
    assert!(error(b"{\"kind\": \"PodList\"}").contains("does not begin with"));
    let list = |inside: &[u8]| [MAGIC, b"\x12", &[u8::try_from(inside.len()).unwrap()], inside].concat();
    assert!(error(&list(b"\x12\x05")).contains("longer than its list"));
    assert!(error(&list(b"\x15\0\0\0\0")).contains("unexpected wire type"));
    assert!(error(&[MAGIC, &[0xff; 30]].concat()).contains("more than 64 bits"));
    assert!(error(&list(b"\x0a\x02\x12\x09")).contains("ends inside a field"));
}

#[test]
fn the_memory_of_a_large_object_is_released() {
    let mut splitter = Splitter::new(true, BodyShape::Events);
    splitter.push(&protobuf::frame("ADDED", &vec![b'x'; 1 << 20]));
    drop(splitter.next().unwrap().unwrap());
    assert_eq!(splitter.next(), Ok(None));
    assert!(splitter.capacity() < 1 << 16, "{}", splitter.capacity());
}
