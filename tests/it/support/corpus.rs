//! The cases with the verdict of the kubelet's own code.

use std::{fs::File, io::Read as _, path::Path};

/// The cases of one file of `tests/corpus/`.
pub fn corpus(name: &str) -> Vec<serde_json::Value> {
    // The package may be `tests/library`.
    let mut places =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|above| above.join("tests/corpus"));
    let corpus = places.find(|place| place.is_dir()).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(File::open(corpus.join(name)).unwrap()).read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
