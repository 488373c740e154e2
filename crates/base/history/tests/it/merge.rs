//! Several histories become one.

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
fn events_come_in_the_order_of_their_time() {
    let text = merged(&[ONE, TWO]).unwrap();
    let times: Vec<&str> = text.lines().map(|line| &line[5..6]).collect();
    assert_eq!(times, ["1", "1", "2", "3", "5", "6", "9", "9"]);
    assert!(text.starts_with(r#"{"t":1,"event":"begin","writes":["token"]}"#), "{text}");
    assert!(text.ends_with("{\"t\":9,\"event\":\"end\"}\n"), "{text}");
}

#[test]
fn a_part_without_begin_or_end_leaves_the_whole_without() {
    let (first, rest) = TWO.split_once('\n').unwrap();
    assert!(!merged(&[ONE, rest]).unwrap().contains("begin"));
    let broken_off = format!("{first}\n{}", rest.lines().next().unwrap());
    assert!(!merged(&[ONE, &broken_off]).unwrap().contains("\"end\""));
    assert_eq!(merged(&[]).unwrap(), "");
}

#[test]
fn the_part_that_cannot_be_read_is_named() {
    let error = merged(&[ONE, "{\n"]).unwrap_err().to_string();
    assert!(error.starts_with("history 2: line 1"), "{error}");
}
