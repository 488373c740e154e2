//! The checker judges the histories of several nodes together.

use lockify_check::{Options, check_reader};
use lockify_history::{MergeError, Reader, Writer, merge};

fn merged(parts: &[&str]) -> Result<String, MergeError> {
    let mut writer = Writer::new(Vec::new());
    let written = merge(parts.iter().map(|part| Reader::new(part.as_bytes())), &mut writer)?;
    assert_eq!(written, writer.written());
    Ok(String::from_utf8(writer.into_inner()?).unwrap())
}

const ONE: &str = r#"{"t":1,"event":"begin","writes":["claim","token"]}
{"t":1,"node":1,"lock":1,"resource":"r","event":"request","mode":"EX"}
{"t":2,"node":1,"lock":1,"event":"grant","mode":"EX"}
{"t":5,"node":1,"lock":1,"event":"unlock"}
{"t":9,"node":1,"lock":1,"event":"complete","status":65538}
{"t":9,"event":"end"}
"#;

const TWO: &str = r#"{"t":0,"event":"begin","writes":["token","lvb"]}
{"t":3,"node":2,"lock":1,"resource":"r","event":"request","mode":"PR"}
{"t":6,"node":2,"lock":1,"event":"grant","mode":"PR"}
{"t":6,"event":"end"}
"#;

#[test]
fn a_violation_between_two_histories_is_found() {
    let text = merged(&[ONE, TWO]).unwrap();
    let outcome = check_reader(Reader::new(text.as_bytes()), Options::recorded());
    assert_eq!(outcome.exit_code(), 0, "{}", outcome.text());
    let text = merged(&[ONE, &TWO.replace("\"t\":6", "\"t\":4")]).unwrap();
    let outcome = check_reader(Reader::new(text.as_bytes()), Options::recorded());
    assert_eq!(outcome.exit_code(), 1, "{}", outcome.text());
}
