//! Protobuf of the API's objects: the same as Go's own codec, and bad input is an error.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use expect_test::{Expect, expect};
use podmux::{
    manifest::protobuf::{self, Envelope, Fields, MAGIC, WireError, WireValue},
    pod::Prepared,
};
use serde_json::{Map, Value, json};

use crate::{
    oracle::{KNOWN, cases},
    support::{kubernetes::Oracle, random::Random},
};

/// Asks Go to convert a pod of JSON.
fn go_encodes(oracle: &mut Oracle, pod: &Value) -> Value {
    oracle.ask(&json!({"op": "protobuf", "pod": pod}))
}

/// Asks Go to convert a pod of protobuf.
fn go_decodes(oracle: &mut Oracle, bytes: &[u8]) -> Value {
    oracle.ask(&json!({"op": "protobuf", "protobuf": STANDARD.encode(bytes)}))
}

fn bytes_of(answer: &Value) -> Vec<u8> {
    STANDARD.decode(answer["protobuf"].as_str().unwrap()).unwrap()
}

/// A pod as it is compared: null is absent.
fn without_nulls(mut value: Value) -> Value {
    fn drop_nulls(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|_, value| !value.is_null());
                map.values_mut().for_each(drop_nulls);
            }
            Value::Array(items) => items.iter_mut().for_each(drop_nulls),
            _ => {}
        }
    }
    drop_nulls(&mut value);
    value
}

/// Bytes that are a valid message most of the time: two pods one after the other, a changed byte, or a cut.
fn damaged(random: &mut Random, message: &[u8], other: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    match random.below(3) {
        0 => message.extend_from_slice(other),
        1 if !message.is_empty() => {
            let at = random.below(message.len());
            message[at] = *random.pick(&[0, 1, 0x7f, 0x80, 0xff, message[at].wrapping_add(1)]);
        }
        _ => message.truncate(random.below(message.len() + 1)),
    }
    message
}

fn enveloped(message: &[u8]) -> Vec<u8> {
    let length = u8::try_from(message.len() & 0x7f).unwrap();
    let mut length = vec![length];
    let mut rest = message.len() >> 7;
    while rest > 0 {
        *length.last_mut().unwrap() |= 0x80;
        length.push(u8::try_from(rest & 0x7f).unwrap());
        rest >>= 7;
    }
    [MAGIC, b"\x0a\x09\x0a\x02v1\x12\x03Pod\x12", &length, message].concat()
}

#[test]
fn random_pods_are_the_same_in_protobuf_as_in_gos_codec_in_both_directions() {
    let Some(mut oracle) = Oracle::start() else { return };
    let (mut tried, mut fields) = (0, BTreeMap::new());
    for seed in 0.. {
        if tried == cases("PODMUX_PROTOBUF", 1000) {
            break;
        }
        let pod = KNOWN.pod(&mut Random::new(seed));
        let theirs = go_encodes(&mut oracle, &pod);
        if !theirs["error"].is_null() {
            continue;
        }
        tried += 1;
        // An empty list is as absent in protobuf.
        let wanted = without_nulls(go_decodes(&mut oracle, &bytes_of(&theirs))["pod"].clone());
        let decoded = protobuf::decode(&bytes_of(&theirs), "Pod").unwrap();
        assert_eq!(without_nulls(decoded), wanted, "{seed}: decoding {pod}");
        let encoded = protobuf::encode(&theirs["pod"]).unwrap();
        let again = go_decodes(&mut oracle, &encoded);
        assert_eq!(without_nulls(again["pod"].clone()), wanted, "{seed}: encoding {pod}: {}", again["error"]);
        count_fields(&wanted, &mut fields);
    }
    println!("{tried} pods with {} fields", fields.len());
    assert!(fields.len() > 100, "the cases are too similar: {fields:?}");
}

fn count_fields(value: &Value, fields: &mut BTreeMap<String, usize>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                *fields.entry(name.clone()).or_default() += 1;
                count_fields(value, fields);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| count_fields(item, fields)),
        _ => {}
    }
}

#[test]
fn damaged_messages_are_read_as_by_go() {
    let Some(mut oracle) = Oracle::start() else { return };
    let (mut accepted, mut rejected) = (0, 0);
    let mut other = Vec::new();
    for seed in 0..cases("PODMUX_PROTOBUF", 1000) {
        let random = &mut Random::new(seed);
        let theirs = go_encodes(&mut oracle, &KNOWN.pod(random));
        if !theirs["error"].is_null() {
            continue;
        }
        let whole = bytes_of(&theirs);
        let message = Envelope::open(&whole).unwrap().message.to_vec();
        let damaged = enveloped(&damaged(random, &message, &other));
        other = message;
        let (theirs, ours) = (go_decodes(&mut oracle, &damaged), protobuf::decode(&damaged, "Pod"));
        match ours {
            Ok(ours) if theirs["error"].is_null() => {
                accepted += 1;
                assert_eq!(without_nulls(ours), without_nulls(theirs["pod"].clone()), "{seed}");
            }
            Ok(_) => panic!("{seed}: accepted; Go: {}", theirs["error"]),
            Err(_) if !theirs["error"].is_null() => rejected += 1,
            // Go keeps what it cannot write as JSON, writes a time that it cannot read, and checks no tags of the
            // entries of a map.
            Err(problem) => assert!(is_stricter(&problem.detail), "{seed}: {problem}; Go accepts it"),
        }
    }
    println!("{accepted} accepted, {rejected} rejected");
    assert!(accepted > 100 && rejected > 100, "{accepted} accepted, {rejected} rejected");
}

/// Whether podmux may reject a message for this reason that Go accepts.
fn is_stricter(detail: &str) -> bool {
    let maps = [
        "labels",
        "annotations",
        "limits",
        "requests",
        "nodeSelector",
        "matchLabels",
        "overhead",
        "options",
        "volumeAttributes",
        "allocatedResources",
        "resources",
        "userAnnotations",
    ];
    ["before the year 0", "is not JSON", "is not UTF-8"].iter().any(|known| detail.contains(known))
        || maps.iter().any(|name| detail.starts_with(&format!("the protobuf of {name} is malformed")))
}

/// The text of a pod's protobuf, or the problem.
fn read(message: &[u8]) -> String {
    match protobuf::decode(&enveloped(message), "Pod") {
        Ok(pod) => pod.to_string(),
        Err(problem) => problem.to_string(),
    }
}

/// A field that is a text or a message.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    assert!(value.len() < 0x80 && number < 16);
    [&[number << 3 | 2, u8::try_from(value.len()).unwrap()], value].concat()
}

fn check(message: &[u8], expected: &Expect) {
    expected.assert_eq(&read(message));
}

#[test]
fn repeated_messages_are_merged_and_of_scalars_the_last_one_counts() {
    let named = |name: &str| field(1, &field(1, name.as_bytes()));
    let label = |value: &str| field(1, &field(11, &[field(1, b"k"), field(2, value.as_bytes())].concat()));
    let message = [named("a"), label("1"), label("2"), named("b")].concat();
    check(
        &message,
        &expect![[
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"k":"2"},"name":"b"},"spec":{},"status":{}}"#
        ]],
    );
}

#[test]
fn unknown_fields_of_each_wire_type_are_skipped() {
    let numbers = [&b"\xf8\x07\x01"[..], b"\xf9\x07\0\0\0\0\0\0\0\0", b"\xfd\x07\0\0\0\0", b"\xfa\x07\x01x"];
    // A group with a group inside.
    let group = b"\xfb\x07\xfb\x07\x08\x01\xfc\x07\xfc\x07";
    let name = field(1, &field(1, b"a"));
    let message = [&numbers.concat(), &group[..], &name].concat();
    assert!(read(&message).contains(r#""name":"a""#), "{}", read(&message));
    assert!(read(b"\xfc\x07").contains("a group ends that did not begin"));
    assert!(read(b"\xfb\x07").contains("ends inside a field"));
    assert!(read(b"\xfe\x07").contains("unknown wire type"));
}

#[test]
fn groups_that_nest_deep_are_skipped_without_depth() {
    let depth = 1_000_000;
    let message = [&b"\xfb\x07".repeat(depth)[..], &b"\xfc\x07".repeat(depth), &field(1, &field(1, b"a"))];
    assert!(read(&message.concat()).contains(r#""name":"a""#));
    let open = b"\xfb\x07".repeat(depth);
    assert!(read(&open).contains("ends inside a field"));
}

#[test]
fn a_length_that_is_a_lie_is_an_error_and_takes_no_memory() {
    for length in [&b"\x05"[..], b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"] {
        let message = [&b"\x0a"[..], length, b"abc"].concat();
        assert!(read(&message).contains("ends inside a field"), "{}", read(&message));
    }
    assert!(read(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01").contains("more than 64 bits"));
    assert!(read(b"\x08\x01").contains("another wire type is expected"));
    assert!(read(b"\x02\x01x").contains("a field has the number 0"));
}

#[test]
fn text_that_is_not_utf8_has_replacement_characters_as_in_go() {
    assert!(read(&field(1, &field(1, b"a\xff\xfeb"))).contains("\"a\u{fffd}\u{fffd}b\""));
}

#[test]
fn values_that_are_not_of_their_type_are_named() {
    let container = |fields: &[u8]| field(2, &field(2, fields));
    // A resource limit that is no quantity.
    let limit = field(8, &field(1, &[field(1, b"cpu"), field(2, &field(1, b"much"))].concat()));
    check(
        &container(&limit),
        &expect![[
            r#"spec.containers[0].resources.limits[cpu]: must be a quantity (a number with an optional suffix or exponent: 500m, 1.5Gi, 1e3), but is the string "much""#
        ]],
    );
    let deleted = field(1, &field(8, b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f"));
    check(&deleted, &expect![["creationTimestamp is a time before the year 0 or after 9999"]]);
}

#[test]
fn what_is_no_object_in_protobuf_is_an_error() {
    let error = |bytes: &[u8]| protobuf::decode(bytes, "Pod").unwrap_err().to_string();
    assert!(error(b"").contains("must begin with"));
    assert!(error(b"{}").contains("must begin with"));
    assert!(error(b"k8s\0\x0a\x50").contains("the envelope (runtime.Unknown) is malformed"));
    assert!(error(b"k8s\0\x0a\x07\x12\x05Event").contains("the kind \"Event\" is unknown"));
    assert_eq!(protobuf::decode(MAGIC, "Pod").unwrap()["kind"], "Pod", "an absent kind is the expected one");
}

#[test]
fn a_message_of_a_server_is_a_pod_without_its_managed_fields() {
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "a", "managedFields": [{"manager": "m", "fieldsV1": {"f:metadata": {}}}]},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    let bytes = protobuf::encode(&pod).unwrap();
    let prepared = Prepared::from_server_protobuf(Envelope::open(&bytes).unwrap().message).unwrap();
    expect![[r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"default"},"spec":{"containers":[{"image":"i","name":"c","resources":{}}]},"status":{}}"#]]
        .assert_eq(&Value::from(prepared.object().clone()).to_string());
    let nameless = Prepared::from_server_protobuf(b"").unwrap_err();
    assert_eq!((nameless.key, nameless.problem.to_string().contains("name")), (None, true));
}

#[test]
fn fields_are_read_up_to_the_first_broken_one() {
    let fields: Vec<_> = Fields::new(b"\x08\x96\x01\x12\x01x\x1a\x05y").collect();
    let expected =
        [Ok((1, WireValue::Number(150))), Ok((2, WireValue::Bytes(b"x"))), Err(WireError::Incomplete)];
    assert_eq!(fields, expected);
}

#[test]
fn options_and_statuses_are_the_same_after_both_directions() {
    let options = json!({
        "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "dryRun": ["All"],
        "preconditions": {"uid": "u", "resourceVersion": "7"}, "propagationPolicy": "Background",
    });
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {"continue": "c"}, "status": "Failure", "message": "m",
        "reason": "Expired", "code": 410,
        "details": {"name": "a", "kind": "pods", "causes": [{"reason": "r", "message": "m", "field": "f"}], "retryAfterSeconds": 1},
    });
    for object in [options, status] {
        let kind = object["kind"].as_str().unwrap();
        assert_eq!(protobuf::decode(&protobuf::encode(&object).unwrap(), kind).unwrap(), object);
    }
    assert_eq!(protobuf::encode(&json!({"kind": "Event", "apiVersion": "v1"})), None);
    assert_eq!(protobuf::encode(&Value::Object(Map::new())), None);
}
