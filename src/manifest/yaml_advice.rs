//! What to do about an error of the YAML parser. Pure.

/// A `{` where a key is expected; most often it begins a `{{` of a template.
pub(super) const A_MAP_AS_KEY: &str =
    "a map cannot be a key: put a text with braces in quotes, and render a template first (helm template)";

const A_BRACKET: &str = "a bracket that begins before has no end";

/// The advice for errors that contain a text. The first one fits.
const ADVICE: [(&str, &str); 13] = [
    ("tab", "use spaces, not tabs"),
    ("mapping values are not allowed", "check the indentation, or put a text that contains ': ' in quotes"),
    ("simple key expected", "write KEY: VALUE, with a space after the colon"),
    ("did not find expected key", "the fields of one map begin in the same column"),
    ("did not find expected '-'", "the items of one list begin in the same column, each with '- '"),
    ("expected ',' or", "a comma or a closing bracket is missing before this"),
    ("unclosed quote", "a quote that begins here or before has no end"),
    (
        "multiline quoted scalar",
        "a quote that begins before has no end, or its further lines are not indented more than its key",
    ),
    ("cannot start with '-'", "put the - in quotes"),
    ("invalid indentation", "the fields of one map begin in the same column"),
    ("unexpected character", "put the text in quotes"),
    ("placement of ':'", A_BRACKET),
    ("only valid inside a block", A_BRACKET),
];

/// The parser's words with what to do about it, where that is known.
pub(super) fn advised(error: String) -> String {
    match ADVICE.iter().find(|(part, _)| error.contains(part)) {
        Some((_, advice)) => format!("{error}: {advice}"),
        None => error,
    }
}
