//! Any bytes as the message of an object, and in its envelope.
//!
//! Nothing panics, what is decoded is the same after it is encoded and decoded again, and a problem is one line.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

use libfuzzer_sys::fuzz_target;
use podmux::{
    manifest::protobuf::{self, Envelope, MAGIC, WatchEvent},
    pod::Prepared,
};
use podmux_fuzz::bounded;

const KINDS: [&str; 4] = ["Pod", "PodList", "DeleteOptions", "Status"];

fuzz_target!(|input: (u8, &[u8])| {
    let (choice, message) = input;
    let kind = KINDS[usize::from(choice) % KINDS.len()];
    bounded(message.len(), || {
        let _ = Envelope::open(message);
        let _ = WatchEvent::read(message);
        if let Err(error) = Prepared::from_server_protobuf(message) {
            assert!(!error.problem.to_string().chars().any(char::is_control), "{}", error.problem);
        }
    });
    let bytes = enveloped(kind, message);
    bounded(message.len(), || match protobuf::decode(&bytes, kind) {
        Ok(object) => {
            let again = protobuf::encode(&object).unwrap();
            assert_eq!(protobuf::decode(&again, kind).unwrap(), object);
        }
        Err(problem) => {
            assert_eq!(problem.position, None);
            assert!(!problem.to_string().chars().any(char::is_control), "{problem}");
        }
    });
});

fn enveloped(kind: &str, message: &[u8]) -> Vec<u8> {
    let kind_length = u8::try_from(kind.len()).unwrap();
    let mut head = [MAGIC, &[0x0a, kind_length + 2, 0x12, kind_length], kind.as_bytes(), &[0x12]].concat();
    let mut length = message.len();
    while length >= 0x80 {
        head.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    head.push(u8::try_from(length).unwrap());
    [&head, message].concat()
}
