//! A registry with one image, which a real podman pulls. A test decides when it answers.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
};

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::podman::image;

/// How many layers the image has.
pub const LAYERS: usize = 3;

/// The length of the message with which the tag `refused` is refused, in bytes.
const LONG: usize = 100_000;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The registry. Its threads end with the test binary.
pub struct Registry {
    pub address: SocketAddr,
    /// The digest of the image's configuration, which is pulled before its layers.
    pub config: String,
    open: Arc<(Mutex<Vec<String>>, Condvar)>,
}

/// What is served.
struct Content {
    config: String,
    manifest: Vec<u8>,
    /// By digest.
    blobs: BTreeMap<String, Vec<u8>>,
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// A tar archive with a file of this name.
fn archive(name: &str, text: &str) -> Vec<u8> {
    let mut head = [0_u8; 512];
    let size = format!("{:011o}", text.len());
    let fields = [(0, name), (100, "0000644"), (108, "0000000"), (116, "0000000"), (124, &*size)];
    for (at, text) in
        fields.into_iter().chain([(136, "00000000000"), (148, "        "), (156, "0"), (257, "ustar\x0000")])
    {
        head[at..at + text.len()].copy_from_slice(text.as_bytes());
    }
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = [&head[..], text.as_bytes()].concat();
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}

impl Content {
    fn new() -> Self {
        let mut layers = vec![fs::read(image().unwrap()).unwrap()];
        layers.extend((1..LAYERS).map(|number| archive(&format!("layer{number}"), "x")));
        let digests: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": digests},
        });
        let config = config.to_string().into_bytes();
        let config_digest = digest(&config);
        let described: Vec<_> = layers
            .iter()
            .map(|layer| {
                let media_type = "application/vnd.oci.image.layer.v1.tar";
                json!({"mediaType": media_type, "digest": digest(layer), "size": layer.len()})
            })
            .collect();
        let media_type = "application/vnd.oci.image.config.v1+json";
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "layers": described,
            "config": {"mediaType": media_type, "digest": config_digest, "size": config.len()},
        });
        let blobs = layers.into_iter().chain([config]).map(|blob| (digest(&blob), blob)).collect();
        Self { config: config_digest, manifest: manifest.to_string().into_bytes(), blobs }
    }
}

impl Registry {
    /// A registry that answers nothing yet but that it is one.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open: Arc<(Mutex<Vec<String>>, Condvar)> = Arc::default();
        let (content, opened) = (Arc::new(Content::new()), open.clone());
        let config = content.config.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (content, open) = (content.clone(), opened.clone());
                // A client that tries TLS first is turned away.
                thread::spawn(move || drop(serve(&stream.unwrap(), &content, &open)));
            }
        });
        Self { address, config, open }
    }

    /// The name of the image with a tag.
    pub fn image(&self, tag: &str) -> String {
        format!("{}/app:{tag}", self.address)
    }

    /// Answers requests with this in their paths from now on: `manifests/1`, `blobs`.
    pub fn open(&self, what: &str) {
        self.open.0.lock().unwrap().push(what.to_owned());
        self.open.1.notify_all();
    }
}

fn serve(stream: &TcpStream, content: &Content, open: &(Mutex<Vec<String>>, Condvar)) -> io::Result<()> {
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let is_head = line.starts_with("HEAD ");
        let Some(path) = line.split(' ').nth(1).map(str::to_owned) else { return Ok(()) };
        while line.trim_end() != "" {
            line.clear();
            lines.read_line(&mut line)?;
        }
        let is_closed =
            |open: &mut Vec<String>| path != "/v2/" && !open.iter().any(|part| path.contains(part));
        drop(open.1.wait_while(open.0.lock().unwrap(), is_closed).unwrap());
        let (media_type, body) = match path.split_once("/blobs/") {
            Some((_, digest)) => ("application/octet-stream", &*content.blobs[digest]),
            None if path == "/v2/" => ("application/json", &b"{}"[..]),
            None => (MANIFEST, &*content.manifest),
        };
        // The message of a refusal is the registry's.
        let refusal = json!({"errors": [{"code": "DENIED", "message": "x".repeat(LONG)}]}).to_string();
        let is_refused = path.contains("refused");
        let (status, media_type, body) = if is_refused {
            ("404 Not Found", "application/json", refusal.as_bytes())
        } else {
            ("200 OK", media_type, body)
        };
        let (digest, length) = (digest(body), body.len());
        let mut stream = stream;
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n\
             Docker-Content-Digest: {digest}\r\n\r\n"
        )?;
        stream.write_all(if is_head { b"" } else { body })?;
    }
}
