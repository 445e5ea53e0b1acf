//! Numbers for people: a comma after each thousand.

/// A number with commas between the thousands: `45,000`.
pub(crate) fn grouped(number: impl ToString + Copy) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How many there are of something: `1 manifest`, `45,000 manifests`.
pub(crate) fn counted(number: impl ToString + Copy, one: &str) -> String {
    let number = grouped(number);
    let end = if number == "1" { "" } else { "s" };
    format!("{number} {one}{end}")
}
