//! Names of flags as names of fields.

/// `token-file` is `tokenFile`.
pub(crate) fn camel_case(name: &str) -> String {
    let mut words = name.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |field, word| {
        let (initial, rest) = word.split_at(1.min(word.len()));
        field + &initial.to_uppercase() + rest
    })
}
