//! How an API server's answer is cut into objects, in whatever chunks it comes.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use podmux::source::api::frames::{FrameError, Frames, ListEnd, MAX_OBJECT, Piece, Shape};
use proptest::{
    collection::{hash_map, vec},
    prelude::{Just, Strategy, any, prop_oneof},
    proptest,
    sample::select,
    strategy::BoxedStrategy,
};
use serde_json::{Value, json};

/// All that a body gives that comes in these chunks, and how it ends.
fn cut<'a>(shape: Shape, chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Piece>, Result<(), FrameError>) {
    let mut frames = Frames::new(shape);
    let mut pieces = Vec::new();
    for chunk in chunks {
        frames.push(chunk);
        loop {
            match frames.next() {
                Ok(Some(piece)) => pieces.push(piece),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(frames.next(), Err(error.clone()), "an error stays");
                    assert_eq!(frames.finish(), Err(error.clone()));
                    return (pieces, Err(error));
                }
            }
        }
    }
    (pieces, frames.finish())
}

fn whole(shape: Shape, text: &str) -> (Vec<Piece>, Result<(), FrameError>) {
    cut(shape, [text.as_bytes()])
}

/// What a body gives as lines, the same byte by byte and in one.
fn check(shape: Shape, text: &str, expected: &Expect) {
    let (pieces, end) = whole(shape, text);
    let bytewise = cut(shape, text.as_bytes().chunks(1));
    // An answer that is no JSON is shown as far as it has come.
    if !matches!(end, Err(FrameError::Garbage(_))) {
        assert_eq!(bytewise.1, end);
    }
    assert_eq!((&bytewise.0, bytewise.1.is_ok()), (&pieces, end.is_ok()));
    let mut said = String::new();
    for piece in pieces {
        match piece {
            Piece::Object(text) => writeln!(said, "{}", text.escape_ascii()),
            Piece::End(ListEnd { api_version, kind, resource_version, continue_token }) => {
                writeln!(said, "end: {api_version} {kind} at {resource_version}, then '{continue_token}'")
            }
        }
        .unwrap();
    }
    match end {
        Ok(()) => writeln!(said, "complete"),
        Err(error) => writeln!(said, "{error}"),
    }
    .unwrap();
    expected.assert_eq(&said);
}

fn events(text: &str, expected: &Expect) {
    check(Shape::Events, text, expected);
}

fn list(text: &str, expected: &Expect) {
    check(Shape::List, text, expected);
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
fn brackets_and_quotes_within_texts_end_nothing() {
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
fn what_ends_in_the_middle_is_cut_off() {
    for text in ["{", r#"{"a"#, r#"{"a\"#, r#"{"a":{}"#, "{} {"] {
        let (pieces, end) = whole(Shape::Events, text);
        assert_eq!((pieces.len(), end), (usize::from(text.starts_with("{}")), Err(FrameError::CutOff)));
    }
}

#[test]
fn what_is_no_json_is_shown_without_harm() {
    events(
        "<!DOCTYPE html><html><head><title>Log in to the hotel's network</title>",
        &expect![[r#"
            the answer is not JSON as an API server writes it: it begins with '<!DOCTYPE html><html><head><title>Log in'
        "#]],
    );
    list(
        "\u{1f}\u{8b}\u{8}\u{0}\u{1b}[31m",
        &expect![[r#"
            the answer is not JSON as an API server writes it: it begins with '\x1f\xc2\x8b\x08\x00\x1b[31m'
        "#]],
    );
    list(
        "\u{feff}{}",
        &expect![[r#"
        the answer is not JSON as an API server writes it: it begins with '\xef\xbb\xbf{}'
    "#]],
    );
    list(
        "404 page not found\n",
        &expect![[r#"
        the answer is not JSON as an API server writes it: it begins with '404 page not found\n'
    "#]],
    );
    list(
        "[]",
        &expect![[r#"
        the answer is not JSON as an API server writes it: it begins with '[]'
    "#]],
    );
    events(
        "null",
        &expect![[r#"
        the answer is not JSON as an API server writes it: it begins with 'null'
    "#]],
    );
}

#[test]
fn of_what_stands_between_objects_and_cannot_one_byte_is_shown() {
    // What follows may be a secret of a pod.
    for (shape, text) in [
        (Shape::Events, r#"{} ken":"s3cret"}"#),
        (Shape::Events, r#"{},"s3cret""#),
        (Shape::List, r#"{} "s3cret""#),
        (Shape::List, r#"{"a" "s3cret"}"#),
        (Shape::List, r#"{"a":}s3cret"#),
        (Shape::List, r#"{"a":1 "s3cret"}"#),
        (Shape::List, r#"{s3cret}"#),
        (Shape::List, r#"{"a":1,}s3cret"#),
        (Shape::List, r#"{,"s3cret":1}"#),
        (Shape::List, r#"{"items":[,"s3cret"]}"#),
        (Shape::List, r#"{"items":[1 "s3cret"]}"#),
        (Shape::List, r#"{"items":{"s3cret":1}}"#),
        (Shape::List, r#"{"metadata":"s3cret"}"#),
        (Shape::List, r#"{"metadata":{s3cret}}"#),
    ] {
        let error = whole(shape, text).1.unwrap_err();
        assert!(matches!(error, FrameError::Garbage(_)), "{text}: {error}");
        assert!(!error.to_string().contains("3c"), "{text}: {error}");
        assert!(matches!(cut(shape, text.as_bytes().chunks(1)).1, Err(FrameError::Garbage(_))));
    }
    events(
        r#"{},{}"#,
        &expect![[r#"
        {}
        the answer is not JSON as an API server writes it: ',' stands where an event was expected
    "#]],
    );
    list(
        r#"{"a":1 "b":2}"#,
        &expect![[r#"
        the answer is not JSON as an API server writes it: '\"' stands where a comma or the end of the list was expected
    "#]],
    );
    list(
        "{}{}",
        &expect![[r#"
        end:   at , then ''
        the answer is not JSON as an API server writes it: '{' stands where nothing more was expected
    "#]],
    );
}

#[test]
fn a_lists_items_come_one_by_one_and_its_end_at_last() {
    list(
        r#" {"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"abc","x":[{}]},"items":[{"a":1} , {}]} "#,
        &expect![[r#"
            {\"a\":1}
            {}
            end: v1 PodList at 7, then 'abc'
            complete
        "#]],
    );
    // In any order, beside anything.
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
        let (pieces, end) =
            whole(Shape::List, &format!(r#"{{"items":{items},"metadata":{{"resourceVersion":"7"}}}}"#));
        let wanted = ListEnd { resource_version: "7".to_owned(), ..ListEnd::default() };
        assert_eq!((pieces, end), (vec![Piece::End(wanted)], Ok(())));
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
fn items_may_be_anything() {
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
fn what_is_no_text_is_no_version() {
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
        the answer is not JSON as an API server writes it: metadata is not what it is in a list
    "#]],
    );
}

#[test]
fn a_list_that_ends_before_its_end_is_cut_off() {
    let text = r#"{"items":[{"a":1},{}],"metadata":{"resourceVersion":"7"},"n":12}"#;
    for length in 0..text.len() {
        let (pieces, end) = whole(Shape::List, &text[..length]);
        assert_eq!(end, Err(FrameError::CutOff), "{length}");
        let items = if length < 17 {
            0
        } else if length < 20 {
            1
        } else {
            2
        };
        assert_eq!(pieces.len(), items, "{length}");
    }
    assert_eq!(whole(Shape::List, text).1, Ok(()));
}

#[test]
fn an_item_comes_as_soon_as_it_is_complete() {
    let mut frames = Frames::new(Shape::List);
    frames.push(br#"{"items":[{"a":1}"#);
    assert_eq!(frames.next(), Ok(Some(Piece::Object(br#"{"a":1}"#.as_slice().into()))));
    assert_eq!(frames.next(), Ok(None));
    assert_eq!(frames.finish(), Err(FrameError::CutOff));
}

#[test]
fn an_object_may_be_10_mib_and_no_more() {
    let object = |length: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(length - 8));
    let list = |item: &str| format!("{{\"items\":[{item}]}}");
    let fits = object(MAX_OBJECT);
    let exceeds = object(MAX_OBJECT + 1);
    assert_eq!((fits.len(), exceeds.len()), (MAX_OBJECT, MAX_OBJECT + 1));
    for chunk in [4096, 1 << 20, usize::MAX] {
        let cut = |shape, text: &str| cut(shape, text.as_bytes().chunks(chunk));
        let (pieces, end) = cut(Shape::Events, &format!("{fits}\n{fits}{{}}"));
        assert_eq!((pieces.len(), end), (3, Ok(())));
        assert_eq!(cut(Shape::Events, &exceeds), (vec![], Err(FrameError::TooLarge)));
        assert_eq!(cut(Shape::List, &list(&fits)).0.len(), 2);
        assert_eq!(cut(Shape::List, &list(&exceeds)), (vec![], Err(FrameError::TooLarge)));
        // No part of a list is held that is larger.
        let other = format!("{{\"managed\":{exceeds}}}");
        assert_eq!(cut(Shape::List, &other), (vec![], Err(FrameError::TooLarge)));
    }
    // It is known before the object ends, and for words and names as well.
    let open = "[".repeat(MAX_OBJECT + 1);
    for text in
        [format!("{{\"a\":{open}"), format!("{{\"a\":{}", open.replace('[', "1")), format!("{{\"{open}")]
    {
        assert_eq!(cut(Shape::List, text.as_bytes().chunks(1 << 20)).1, Err(FrameError::TooLarge));
    }
    // White space is not held at all.
    let space = " ".repeat(MAX_OBJECT + 1);
    assert_eq!(whole(Shape::Events, &format!("{space}{{}}{space}")).1, Ok(()));
}

#[test]
fn what_a_large_object_took_is_given_back() {
    let object = format!("{{\"a\":\"{}\"}}{{", "x".repeat(MAX_OBJECT - 100));
    let mut frames = Frames::new(Shape::Events);
    for chunk in object.as_bytes().chunks(100_000) {
        frames.push(chunk);
        if let Some(piece) = frames.next().unwrap() {
            drop(piece);
            assert!(frames.room() < 1000, "{}", frames.room());
        } else {
            assert!(frames.room() <= 2 * MAX_OBJECT, "{}", frames.room());
        }
    }
    assert_eq!((frames.room() < 1000, frames.finish()), (true, Err(FrameError::CutOff)));
}

#[test]
fn depth_is_the_decoders_affair() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert_eq!(whole(Shape::Events, &deep).0.len(), 1);
    assert_eq!(whole(Shape::List, &format!("{{\"items\":[{deep}],\"x\":{deep}}}")).0.len(), 2);
    assert_eq!(whole(Shape::List, &format!("{{\"metadata\":{deep}}}")).1, Ok(()));
    let version = format!("{{\"metadata\":{{\"resourceVersion\":{deep}}}}}");
    assert!(matches!(whole(Shape::List, &version).1, Err(FrameError::Garbage(_))));
}

/// Any JSON value, with whatever makes finding its end hard.
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

/// The values of the objects; all pieces must be objects.
fn values(pieces: &[Piece]) -> Vec<Value> {
    let value = |piece: &Piece| match piece {
        Piece::Object(text) => serde_json::from_slice(text).unwrap(),
        Piece::End(end) => panic!("{end:?}"),
    };
    pieces.iter().map(value).collect()
}

proptest! {
    #[test]
    fn any_events_come_whole_in_any_chunks(
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
        let (pieces, end) = cut(Shape::Events, chunks(&text, &cuts));
        assert_eq!(end, Ok(()));
        assert_eq!(values(&pieces), events.iter().map(|(event, ..)| event.clone()).collect::<Vec<_>>());
        // What ends early gives what was complete by then.
        let stop = stop % (text.len() + 1);
        let (early, end) = cut(Shape::Events, [&text.as_bytes()[..stop]]);
        let complete = ends.iter().filter(|end| **end <= stop).count();
        assert_eq!(early, pieces[..complete]);
        let last = complete.checked_sub(1).map_or(0, |last| ends[last]);
        let is_between = text.as_bytes()[..stop].trim_ascii_end().len() == last;
        assert_eq!(end.is_ok(), is_between, "{:?}", text[..].get(..stop));
    }

    #[test]
    fn any_list_comes_whole_in_any_chunks_and_any_order(
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
        let (mut pieces, end) = cut(Shape::List, chunks(&text, &cuts));
        assert_eq!(end, Ok(()));
        let all = pieces.clone();
        let [api_version, kind, resource_version, continue_token] =
            ["v1", "PodList", "7", "c\""].map(str::to_owned);
        let wanted = ListEnd { api_version, kind, resource_version, continue_token };
        assert_eq!(pieces.pop(), Some(Piece::End(wanted)));
        assert_eq!(values(&pieces), items);
        let stop = stop % text.trim_end().len();
        let (early, end) = cut(Shape::List, [&text.as_bytes()[..stop]]);
        assert_eq!(end, Err(FrameError::CutOff));
        assert!(all.starts_with(&early) && early.len() < all.len());
    }

    #[test]
    fn any_bytes_give_the_same_in_any_chunks(
        text in vec(select(b"{}[]\",:\\ 1an\x00\xff<".to_vec()), 0..40),
        cuts in vec(any::<usize>(), 0..12),
        is_list in any::<bool>(),
    ) {
        let shape = if is_list { Shape::List } else { Shape::Events };
        let text = text.iter().map(|byte| char::from(*byte)).collect::<String>();
        let (pieces, end) = whole(shape, &text);
        let again = cut(shape, chunks(&text, &cuts));
        assert_eq!(again.0, pieces);
        assert_eq!(again.1.map_err(|error| std::mem::discriminant(&error)), end.map_err(|error| std::mem::discriminant(&error)));
    }
}
