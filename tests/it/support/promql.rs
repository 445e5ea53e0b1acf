//! Reads the metrics and labels of an expression in Prometheus' query language.

/// These words are followed by labels in parentheses.
const LABEL_LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Other words that are neither metrics nor functions.
const WORDS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];

/// A metric in an expression.
#[derive(Debug, Default)]
pub struct Selector {
    pub metric: String,
    /// Label, operator and value.
    pub matchers: Vec<(String, String, String)>,
}

/// The metrics and labels of an expression.
#[derive(Debug, Default)]
pub struct Expression {
    pub selectors: Vec<Selector>,
    /// The labels by which it groups or joins.
    pub labels: Vec<String>,
    /// The labels of its first aggregation, if it has one.
    pub grouped_by: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Sign(String),
}

impl Expression {
    pub fn read(text: &str) -> Self {
        let tokens = tokens(text);
        let mut expression = Self::default();
        let mut at = 0;
        while at < tokens.len() {
            let Token::Word(word) = &tokens[at] else {
                at += 1;
                continue;
            };
            let next = tokens.get(at + 1);
            let opens = next == Some(&Token::Sign("(".to_owned()));
            at += 1;
            if LABEL_LISTS.contains(&&**word) && opens {
                let end =
                    at + tokens[at..].iter().position(|token| *token == Token::Sign(")".into())).unwrap();
                let labels = tokens[at..end].iter().filter_map(|token| match token {
                    Token::Word(label) => Some(label.clone()),
                    _ => None,
                });
                let labels: Vec<String> = labels.collect();
                if word == "by" && expression.grouped_by.is_none() {
                    expression.grouped_by = Some(labels.clone());
                }
                expression.labels.extend(labels);
                at = end;
            } else if !opens && !WORDS.contains(&&**word) && !LABEL_LISTS.contains(&&**word) {
                let aggregates = next.is_some_and(|next| {
                    matches!(next, Token::Word(word) if LABEL_LISTS.contains(&&**word))
                        && matches!(&**word, "sum" | "max" | "min" | "avg" | "count")
                });
                if !aggregates {
                    let (matchers, end) = matchers(&tokens, at);
                    expression.selectors.push(Selector { metric: word.clone(), matchers });
                    at = end;
                }
            }
        }
        expression
    }
}

/// The matchers in the braces at this token, if there are any, and the index after them.
fn matchers(tokens: &[Token], mut at: usize) -> (Vec<(String, String, String)>, usize) {
    let mut matchers = Vec::new();
    if tokens.get(at) != Some(&Token::Sign("{".to_owned())) {
        return (matchers, at);
    }
    at += 1;
    loop {
        match &tokens[at..] {
            [Token::Sign(sign), ..] if sign == "}" => return (matchers, at + 1),
            [Token::Sign(sign), ..] if sign == "," => at += 1,
            [Token::Word(label), Token::Sign(operator), Token::Text(value), ..] => {
                matchers.push((label.clone(), operator.clone(), value.clone()));
                at += 3;
            }
            other => panic!("no matcher: {other:?}"),
        }
    }
}

/// The tokens without numbers, durations and ranges.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => 2 + rest[1..].find('"').expect("a text ends"),
            '[' => 1 + rest.find(']').expect("a range ends"),
            _ if first.is_ascii_alphanumeric() || "_$".contains(first) => rest
                .find(|other: char| !other.is_ascii_alphanumeric() && !"_.:$".contains(other))
                .unwrap_or(rest.len()),
            '=' | '!' if rest.len() > 1 && "=~".contains(&rest[1..2]) => 2,
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        match first {
            '"' => tokens.push(Token::Text(token[1..length - 1].to_owned())),
            '[' => {}
            _ if first.is_ascii_digit() => {}
            _ if first.is_ascii_alphabetic() || "_$".contains(first) => {
                tokens.push(Token::Word(token.to_owned()));
            }
            _ if first.is_whitespace() => {}
            _ => tokens.push(Token::Sign(token.to_owned())),
        }
    }
    tokens
}
