use serde::Deserialize;

use super::*;

fn text_of<T: DeserializeOwned>() -> Vec<String> {
    types_of::<T>().iter().map(ToString::to_string).collect()
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only its shape counts")]
enum Choice {
    None,
    Some(Vec<(u8, String)>),
    Two(u16, Option<Box<[bool]>>),
    Named { x: BTreeMap<Number, u64> },
}

#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Number(u32);

#[test]
fn what_changes_a_type_changes_its_shape() {
    #[derive(Deserialize)]
    #[serde(rename = "T")]
    #[expect(dead_code, reason = "only its shape counts")]
    struct One {
        a: u32,
        b: Option<Choice>,
    }
    #[derive(Deserialize)]
    #[serde(rename = "T")]
    #[expect(dead_code, reason = "only its shape counts")]
    struct Other {
        b: Option<Choice>,
        a: u32,
    }
    assert_eq!(
        text_of::<One>(),
        [
            "enum Choice { None, Some(list of (u8, String)), Two(u16, Option<list of bool>), \
             Named(x: map of Number to u64) }",
            "struct Number { u32 }",
            "struct T { a: u32, b: Option<Choice> }",
        ]
    );
    assert_ne!(text_of::<One>(), text_of::<Other>());
}

#[test]
fn types_of_the_same_name_are_kept_apart() {
    #[derive(Deserialize)]
    #[serde(rename = "Choice")]
    struct Chosen(#[expect(dead_code, reason = "only its shape counts")] Choice);

    let types = types_of::<(Chosen, Choice)>();
    let names: Vec<_> = types.iter().map(|t| (t.kind, t.name)).collect();
    assert_eq!(names, [("enum", "Choice"), ("struct", "Choice"), ("struct", "Number")]);
}

#[test]
fn a_type_that_refuses_what_does_not_hold_together_is_read_nevertheless() {
    #[derive(Deserialize)]
    #[serde(try_from = "Image")]
    struct Picky;
    #[derive(Deserialize)]
    struct Image {
        choices: Vec<Choice>,
    }
    impl TryFrom<Image> for Picky {
        type Error = &'static str;
        fn try_from(image: Image) -> Result<Picky, &'static str> {
            if image.choices.is_empty() { Ok(Picky) } else { Err("not these") }
        }
    }
    let mut of_both = text_of::<Choice>();
    of_both.extend([
        "struct Image { choices: list of Choice }".into(),
        "struct Number { u32 }".into(),
    ]);
    of_both.sort();
    of_both.dedup();
    assert_eq!(text_of::<Picky>(), of_both);
}

#[test]
#[should_panic(expected = "cannot be made up: two is the least")]
fn a_type_that_refuses_everything_is_not_passed_over() {
    #[derive(Deserialize)]
    #[serde(try_from = "u32")]
    struct Picky;
    impl TryFrom<u32> for Picky {
        type Error = &'static str;
        fn try_from(number: u32) -> Result<Picky, &'static str> {
            if number > 1 { Ok(Picky) } else { Err("two is the least") }
        }
    }
    types_of::<Vec<Picky>>();
}
