//! An API server's response is split into objects, whatever its chunks are.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use podmux::source::api::{
    json_splitter::{BodyShape, ListEnd, MAX_OBJECT, Part, SplitError},
    splitter::Splitter,
};
use proptest::{
    collection::{hash_map, vec},
    prelude::{Just, Strategy, any, prop_oneof},
    proptest,
    sample::select,
    strategy::BoxedStrategy,
};
use serde_json::{Value, json};

/// The parts of a body in these chunks, and how it ends.
fn split<'a>(
    shape: BodyShape,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Part>, Result<(), SplitError>) {
    let mut splitter = Splitter::new(false, shape);
    let mut parts = Vec::new();
    for chunk in chunks {
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

fn whole(shape: BodyShape, text: &str) -> (Vec<Part>, Result<(), SplitError>) {
    split(shape, [text.as_bytes()])
}

/// Compares the parts of a body, one a line. Chunks of one byte must give the same.
fn check(shape: BodyShape, text: &str, expected: &Expect) {
    let (parts, end) = whole(shape, text);
    let bytewise = split(shape, text.as_bytes().chunks(1));
    // The error for a body that is not JSON shows what has arrived.
    if !matches!(end, Err(SplitError::Malformed(_))) {
        assert_eq!(bytewise.1, end);
    }
    assert_eq!((&bytewise.0, bytewise.1.is_ok()), (&parts, end.is_ok()));
    let mut log = String::new();
    for part in parts {
        match part {
            Part::Object(text) => writeln!(log, "{}", text.escape_ascii()),
            Part::End(ListEnd { api_version, kind, resource_version, continue_token }) => {
                writeln!(log, "end: {api_version} {kind} at {resource_version}, then '{continue_token}'")
            }
        }
        .unwrap();
    }
    match end {
        Ok(()) => writeln!(log, "complete"),
        Err(error) => writeln!(log, "{error}"),
    }
    .unwrap();
    expected.assert_eq(&log);
}

fn events(text: &str, expected: &Expect) {
    check(BodyShape::Events, text, expected);
}

fn list(text: &str, expected: &Expect) {
    check(BodyShape::List, text, expected);
}

#[test]
fn events_are_objects_with_white_space_between() {
    events("", &expect!["complete\n"]);
    events(" \r\n\t", &expect!["complete\n"]);
    events(
        "{\"a\":1}\n{}{\"b\": [{}, \"}\"]}\n",
        &expect![[r#"
            {\"a\":1}
            {}
            {\"b\": [{}, \"}\"]}
            complete
        "#]],
    );
}

#[test]
fn brackets_and_quotes_inside_strings_end_no_object() {
    events(
        r#"{"}":"{[\"}]\\"} {"a":"\\\"}"}"#,
        &expect![[r#"
            {\"}\":\"{[\\\"}]\\\\\"}
            {\"a\":\"\\\\\\\"}\"}
            complete
        "#]],
    );
}

#[test]
fn an_object_that_ends_in_the_middle_is_incomplete() {
    for text in ["{", r#"{"a"#, r#"{"a\"#, r#"{"a":{}"#, "{} {"] {
        let (parts, end) = whole(BodyShape::Events, text);
        assert_eq!((parts.len(), end), (usize::from(text.starts_with("{}")), Err(SplitError::Incomplete)));
    }
}

#[test]
fn the_error_for_a_body_that_is_not_json_escapes_what_it_shows() {
    events(
        "<!DOCTYPE html><html><head><title>Log in to the hotel's network</title>",
        &expect![[r#"
            the response is not the JSON of an API server: it begins with '<!DOCTYPE html><html><head><title>Log in'
        "#]],
    );
    list(
        "\u{1f}\u{8b}\u{8}\u{0}\u{1b}[31m",
        &expect![[r#"
            the response is not the JSON of an API server: it begins with '\x1f\xc2\x8b\x08\x00\x1b[31m'
        "#]],
    );
    list(
        "\u{feff}{}",
        &expect![[r#"
        the response is not the JSON of an API server: it begins with '\xef\xbb\xbf{}'
    "#]],
    );
    list(
        "404 page not found\n",
        &expect![[r#"
        the response is not the JSON of an API server: it begins with '404 page not found\n'
    "#]],
    );
    list(
        "[]",
        &expect![[r#"
        the response is not the JSON of an API server: it begins with '[]'
    "#]],
    );
    events(
        "null",
        &expect![[r#"
        the response is not the JSON of an API server: it begins with 'null'
    "#]],
    );
}

#[test]
fn the_error_for_invalid_json_shows_one_byte() {
    // The following bytes may be a secret of a pod.
    for (shape, text) in [
        (BodyShape::Events, r#"{} ken":"s3cret"}"#),
        (BodyShape::Events, r#"{},"s3cret""#),
        (BodyShape::List, r#"{} "s3cret""#),
        (BodyShape::List, r#"{"a" "s3cret"}"#),
        (BodyShape::List, r#"{"a":}s3cret"#),
        (BodyShape::List, r#"{"a":1 "s3cret"}"#),
        (BodyShape::List, r#"{s3cret}"#),
        (BodyShape::List, r#"{"a":1,}s3cret"#),
        (BodyShape::List, r#"{,"s3cret":1}"#),
        (BodyShape::List, r#"{"items":[,"s3cret"]}"#),
        (BodyShape::List, r#"{"items":[1 "s3cret"]}"#),
        (BodyShape::List, r#"{"items":{"s3cret":1}}"#),
        (BodyShape::List, r#"{"metadata":"s3cret"}"#),
        (BodyShape::List, r#"{"metadata":{s3cret}}"#),
    ] {
        let error = whole(shape, text).1.unwrap_err();
        assert!(matches!(error, SplitError::Malformed(_)), "{text}: {error}");
        assert!(!error.to_string().contains("3c"), "{text}: {error}");
        assert!(matches!(split(shape, text.as_bytes().chunks(1)).1, Err(SplitError::Malformed(_))));
    }
    events(
        r#"{},{}"#,
        &expect![[r#"
        {}
        the response is not the JSON of an API server: found ',', expected an event
    "#]],
    );
    list(
        r#"{"a":1 "b":2}"#,
        &expect![[r#"
        the response is not the JSON of an API server: found '\"', expected a comma or the end of the list
    "#]],
    );
    list(
        "{}{}",
        &expect![[r#"
        end:   at , then ''
        the response is not the JSON of an API server: found '{', expected nothing more
    "#]],
    );
}

#[test]
fn a_list_gives_its_items_and_then_its_end() {
    list(
        r#" {"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"abc","x":[{}]},"items":[{"a":1} , {}]} "#,
        &expect![[r#"
            {\"a\":1}
            {}
            end: v1 PodList at 7, then 'abc'
            complete
        "#]],
    );
    // The fields may be in any order, beside unknown ones.
    list(
        r#"{"items":[{"items":[1]}],"x":{"metadata":{"resourceVersion":"1"}},"y":[],"z":-1.5e+3,"metadata":{"resourceVersion":"7"},"kind":"K\u00e9","t":true}"#,
        &expect![[r#"
            {\"items\":[1]}
            end:  Ké at 7, then ''
            complete
        "#]],
    );
    list(
        r#"{"it\u0065ms":[{}]}"#,
        &expect![[r#"
        {}
        end:   at , then ''
        complete
    "#]],
    );
}

#[test]
fn a_list_without_items_is_empty() {
    for items in ["null", "[]", " [ ] "] {
        let (parts, end) =
            whole(BodyShape::List, &format!(r#"{{"items":{items},"metadata":{{"resourceVersion":"7"}}}}"#));
        let wanted = ListEnd { resource_version: "7".to_owned(), ..ListEnd::default() };
        assert_eq!((parts, end), (vec![Part::End(wanted)], Ok(())));
    }
    list(
        "{}",
        &expect![[r#"
        end:   at , then ''
        complete
    "#]],
    );
}

#[test]
fn an_item_may_be_any_value() {
    list(
        r#"{"items":[1, "a,]", null,[[{}],2],true,{}]}"#,
        &expect![[r#"
        1
        \"a,]\"
        null
        [[{}],2]
        true
        {}
        end:   at , then ''
        complete
    "#]],
    );
}

#[test]
fn a_field_that_is_not_a_string_is_empty() {
    list(
        r#"{"kind":7,"apiVersion":["v1"],"metadata":{"resourceVersion":7,"continue":null},"items":[]}"#,
        &expect![[r#"
            end:   at , then ''
            complete
        "#]],
    );
    list(
        r#"{"kind":{},"metadata":null}"#,
        &expect![[r#"
        the response is not the JSON of an API server: metadata has the wrong type for a list
    "#]],
    );
}

#[test]
fn a_list_that_ends_early_is_incomplete() {
    let text = r#"{"items":[{"a":1},{}],"metadata":{"resourceVersion":"7"},"n":12}"#;
    for length in 0..text.len() {
        let (parts, end) = whole(BodyShape::List, &text[..length]);
        assert_eq!(end, Err(SplitError::Incomplete), "{length}");
        let items = if length < 17 {
            0
        } else if length < 20 {
            1
        } else {
            2
        };
        assert_eq!(parts.len(), items, "{length}");
    }
    assert_eq!(whole(BodyShape::List, text).1, Ok(()));
}

#[test]
fn an_item_is_returned_as_soon_as_it_is_complete() {
    let mut splitter = Splitter::new(false, BodyShape::List);
    splitter.push(br#"{"items":[{"a":1}"#);
    assert_eq!(splitter.next(), Ok(Some(Part::Object(br#"{"a":1}"#.as_slice().into()))));
    assert_eq!(splitter.next(), Ok(None));
    assert_eq!(splitter.finish(), Err(SplitError::Incomplete));
}

#[test]
fn an_object_may_be_10_mib_and_no_more() {
    let object = |length: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(length - 8));
    let list = |item: &str| format!("{{\"items\":[{item}]}}");
    let fits = object(MAX_OBJECT);
    let exceeds = object(MAX_OBJECT + 1);
    assert_eq!((fits.len(), exceeds.len()), (MAX_OBJECT, MAX_OBJECT + 1));
    for chunk in [4096, 1 << 20, usize::MAX] {
        let split = |shape, text: &str| split(shape, text.as_bytes().chunks(chunk));
        let (parts, end) = split(BodyShape::Events, &format!("{fits}\n{fits}{{}}"));
        assert_eq!((parts.len(), end), (3, Ok(())));
        assert_eq!(split(BodyShape::Events, &exceeds), (vec![], Err(SplitError::TooLarge)));
        assert_eq!(split(BodyShape::List, &list(&fits)).0.len(), 2);
        assert_eq!(split(BodyShape::List, &list(&exceeds)), (vec![], Err(SplitError::TooLarge)));
        // The limit holds for the other fields of a list, too.
        let other = format!("{{\"managed\":{exceeds}}}");
        assert_eq!(split(BodyShape::List, &other), (vec![], Err(SplitError::TooLarge)));
    }
    // The error comes before the object ends, and for numbers and names, too.
    let open = "[".repeat(MAX_OBJECT + 1);
    for text in
        [format!("{{\"a\":{open}"), format!("{{\"a\":{}", open.replace('[', "1")), format!("{{\"{open}")]
    {
        assert_eq!(split(BodyShape::List, text.as_bytes().chunks(1 << 20)).1, Err(SplitError::TooLarge));
    }
    // White space is not stored.
    let space = " ".repeat(MAX_OBJECT + 1);
    assert_eq!(whole(BodyShape::Events, &format!("{space}{{}}{space}")).1, Ok(()));
}

#[test]
fn the_memory_of_a_large_object_is_released() {
    let object = format!("{{\"a\":\"{}\"}}{{", "x".repeat(MAX_OBJECT - 100));
    let mut splitter = Splitter::new(false, BodyShape::Events);
    for chunk in object.as_bytes().chunks(100_000) {
        splitter.push(chunk);
        if let Some(part) = splitter.next().unwrap() {
            drop(part);
            assert!(splitter.capacity() < 1000, "{}", splitter.capacity());
        } else {
            assert!(splitter.capacity() <= 2 * MAX_OBJECT, "{}", splitter.capacity());
        }
    }
    assert_eq!((splitter.capacity() < 1000, splitter.finish()), (true, Err(SplitError::Incomplete)));
}

#[test]
fn the_nesting_depth_is_not_limited() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert_eq!(whole(BodyShape::Events, &deep).0.len(), 1);
    assert_eq!(whole(BodyShape::List, &format!("{{\"items\":[{deep}],\"x\":{deep}}}")).0.len(), 2);
    assert_eq!(whole(BodyShape::List, &format!("{{\"metadata\":{deep}}}")).1, Ok(()));
    let version = format!("{{\"metadata\":{{\"resourceVersion\":{deep}}}}}");
    assert!(matches!(whole(BodyShape::List, &version).1, Err(SplitError::Malformed(_))));
}

/// Any JSON value, with texts that make it hard to find its end.
fn value() -> BoxedStrategy<Value> {
    let text =
        || vec(select(vec!["a", "\"", "\\", "{", "}", "[", "]", ",", "é", "\u{1F600}", "\n", "\u{1}"]), 0..6);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i16>().prop_map(|number| json!(f64::from(number) / 8.0)),
        text().prop_map(|parts| Value::from(parts.concat())),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            hash_map(text().prop_map(|parts| parts.concat()), inner, 0..6)
                .prop_map(|map| Value::from(serde_json::Map::from_iter(map))),
        ]
    })
    .boxed()
}

fn object() -> impl Strategy<Value = Value> {
    value().prop_map(|value| json!({ "object": value }))
}

fn space() -> impl Strategy<Value = &'static str> {
    select(vec!["", " ", "\n", "\r\n\t "])
}

/// A text in chunks that end at random places.
fn chunks<'a>(text: &'a str, cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect()
}

/// The values of parts that are all objects.
fn values(parts: &[Part]) -> Vec<Value> {
    let value = |part: &Part| match part {
        Part::Object(text) => serde_json::from_slice(text).unwrap(),
        Part::End(end) => panic!("{end:?}"),
    };
    parts.iter().map(value).collect()
}

proptest! {
    #[test]
    fn any_events_are_returned_whole_in_any_chunks(
        events in vec((object(), space(), any::<bool>()), 0..6),
        cuts in vec(any::<usize>(), 0..12),
        stop in any::<usize>(),
    ) {
        let mut text = String::new();
        let mut ends = Vec::new();
        for (event, space, is_pretty) in &events {
            let event = if *is_pretty { format!("{event:#}") } else { event.to_string() };
            text += &event;
            ends.push(text.len());
            text += space;
        }
        let (parts, end) = split(BodyShape::Events, chunks(&text, &cuts));
        assert_eq!(end, Ok(()));
        assert_eq!(values(&parts), events.iter().map(|(event, ..)| event.clone()).collect::<Vec<_>>());
        // A body that ends early gives the events that are complete.
        let stop = stop % (text.len() + 1);
        let (early, end) = split(BodyShape::Events, [&text.as_bytes()[..stop]]);
        let complete = ends.iter().filter(|end| **end <= stop).count();
        assert_eq!(early, parts[..complete]);
        let last = complete.checked_sub(1).map_or(0, |last| ends[last]);
        let is_between = text.as_bytes()[..stop].trim_ascii_end().len() == last;
        assert_eq!(end.is_ok(), is_between, "{:?}", text[..].get(..stop));
    }

    #[test]
    fn any_list_is_returned_whole_in_any_chunks_and_any_order(
        items in vec(value(), 0..6),
        fields in vec((select(vec!["a", "b\"", "c\\", "it", ""]), value()), 0..4),
        order in any::<usize>(),
        space in space(),
        cuts in vec(any::<usize>(), 0..12),
        stop in any::<usize>(),
    ) {
        let mut parts: Vec<String> =
            fields.iter().map(|(name, value)| format!("{}{space}:{space}{value:#}", json!(name))).collect();
        for part in [
            format!("\"items\":{}", json!(items)),
            format!("\"metadata\":{}", json!({"resourceVersion": "7", "continue": "c\"", "x": items})),
            "\"kind\" : \"PodList\"".to_owned(),
            "\"apiVersion\":\"v1\"".to_owned(),
        ] {
            parts.insert(order % (parts.len() + 1), part);
        }
        let text = format!("{{{space}{}{space}}}{space}", parts.join(&format!("{space},{space}")));
        let (mut parts, end) = split(BodyShape::List, chunks(&text, &cuts));
        assert_eq!(end, Ok(()));
        let all = parts.clone();
        let [api_version, kind, resource_version, continue_token] =
            ["v1", "PodList", "7", "c\""].map(str::to_owned);
        let wanted = ListEnd { api_version, kind, resource_version, continue_token };
        assert_eq!(parts.pop(), Some(Part::End(wanted)));
        assert_eq!(values(&parts), items);
        let stop = stop % text.trim_end().len();
        let (early, end) = split(BodyShape::List, [&text.as_bytes()[..stop]]);
        assert_eq!(end, Err(SplitError::Incomplete));
        assert!(all.starts_with(&early) && early.len() < all.len());
    }

    #[test]
    fn any_bytes_give_the_same_parts_in_any_chunks(
        text in vec(select(b"{}[]\",:\\ 1an\x00\xff<".to_vec()), 0..40),
        cuts in vec(any::<usize>(), 0..12),
        is_list in any::<bool>(),
    ) {
        let shape = if is_list { BodyShape::List } else { BodyShape::Events };
        let text = text.iter().map(|byte| char::from(*byte)).collect::<String>();
        let (parts, end) = whole(shape, &text);
        let again = split(shape, chunks(&text, &cuts));
        assert_eq!(again.0, parts);
        assert_eq!(again.1.map_err(|error| std::mem::discriminant(&error)), end.map_err(|error| std::mem::discriminant(&error)));
    }
}
