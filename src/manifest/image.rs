//! The name of a container image, as far as its pull policy depends on it.

/// Whether an image is pulled always by default: its tag is `latest`, or it has
/// neither tag nor digest. A name that is no image name is not (the grammar is
/// `github.com/distribution/reference`'s, behind the API's `ParseImageName`).
pub(super) fn is_latest(image: &str) -> bool {
    tag_and_digest(image).is_some_and(|(tag, digest)| match tag {
        Some(tag) => tag == "latest",
        None => digest.is_none(),
    })
}

type Parts<'t> = (Option<&'t str>, Option<&'t str>);

fn tag_and_digest(image: &str) -> Option<Parts<'_>> {
    let is_identifier = image.len() == 64 && image.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if is_identifier {
        return None;
    }
    let (domain, rest) = match image.split_once('/') {
        Some((domain, rest)) if is_domain_like(domain) => (Some(domain), rest),
        _ => (None, image),
    };
    if let Some(domain) = domain
        && !is_domain(domain)
    {
        return None;
    }
    let (name, digest) = match rest.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (rest, None),
    };
    let (path, tag) = match name.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (name, None),
    };
    let on_hub = domain.is_none_or(|domain| matches!(domain, "docker.io" | "index.docker.io"));
    let implied = if on_hub && !path.contains('/') { "library/".len() } else { 0 };
    let fine = path.split('/').all(is_path_component)
        && path.len() + implied <= 255
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    fine.then_some((tag, digest))
}

fn is_domain_like(text: &str) -> bool {
    text == "localhost" || text.contains(['.', ':']) || text.chars().any(char::is_uppercase)
}

/// A host name or a bracketed IPv6 address, perhaps with a port.
fn is_domain(text: &str) -> bool {
    let (host, port) = match text.rfind(']') {
        Some(end) => (&text[..=end], text[end + 1..].strip_prefix(':')),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let whole = host.len() + port.map_or(0, |port| port.len() + 1) == text.len();
    let is_label = |label: &str| {
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = label.as_bytes();
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    };
    let is_address = |host: &str| {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.is_some_and(|inner| {
            !inner.is_empty() && inner.bytes().all(|b| b.is_ascii_hexdigit() || b == b':')
        })
    };
    whole
        && (host.split('.').all(is_label) || is_address(host))
        && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

/// Lower-case letters and digits, joined by `.`, `_`, `__` or any number of `-`.
fn is_path_component(text: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut rest = text.as_bytes();
    loop {
        let plain = rest.iter().take_while(|b| is_plain(**b)).count();
        if plain == 0 {
            return false;
        }
        rest = &rest[plain..];
        rest = match rest {
            [] => return true,
            [b'_', b'_', after @ ..] | [b'.' | b'_', after @ ..] => after,
            [b'-', ..] => &rest[rest.iter().take_while(|b| **b == b'-').count()..],
            _ => return false,
        };
    }
}

fn is_tag(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let bytes = text.as_bytes();
    bytes.len() <= 128
        && bytes.first().is_some_and(|b| is_word(*b))
        && bytes.iter().all(|b| is_word(*b) || matches!(b, b'.' | b'-'))
}

/// A digest of one of the algorithms that container tools know.
fn is_digest(text: &str) -> bool {
    let length = match text.split_once(':') {
        Some(("sha256", _)) => 64,
        Some(("sha384", _)) => 96,
        Some(("sha512", _)) => 128,
        _ => return false,
    };
    let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    text.len() == length + 7 && text[7..].bytes().all(is_hex)
}
