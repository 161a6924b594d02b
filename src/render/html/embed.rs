//! Text from elsewhere, made harmless inside HTML.

/// JSON for the inside of a `<script type="application/json">`: what could end the element, or be
/// taken for the beginning of a comment, is written as JSON escapes. These characters are in strings only.
pub(super) fn in_script(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + json.len() / 64);
    for c in json.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out
}

/// Text between tags.
pub(super) fn escape_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same() {
        let hostile = "</script>&<!--\u{2028}\u{2029}\"\\ü";
        let json = in_script(&serde_json::to_string(hostile).unwrap());
        assert!(!json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']));
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
        assert_eq!(escape_text("</title>&"), "&lt;/title&gt;&amp;");
    }
}
