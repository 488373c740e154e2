//! docs/protocol.md says which messages there are: their numbers, classes and fields, and the types of these. What the code has
//! is found by pretending to read messages.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::Deserialize;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer as _, SeqAccess,
    VariantAccess, Visitor,
};

use super::{Class, class};
use crate::message::{Body, Message};

const PAGE: &str = include_str!("../../../docs/protocol.md");

/// The page has these in other tables: they are in answers to sessions, too.
const ELSEWHERE: [&str; 5] = ["LockInfo", "Mode", "Queue", "ResourceInfo", "Wait"];

/// Names that the page has for simple types.
const SIMPLE: [(&str, &str); 8] = [
    ("LockFlags", "u32"),
    ("SbFlags", "u8"),
    ("Lvb", "list of u8"),
    ("Name", "bytes"),
    ("client", "u64"),
    ("lock", "u64"),
    ("node", "u32"),
    ("time", "u64"),
];

/// The cells of the rows of the table whose head begins so.
fn table(head: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = PAGE.split_once(head).expect("the page has this table");
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with("| "));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// What a cell says, with simple types in the place of the page's names for them.
fn plain(cell: &str) -> String {
    let (mut plain, mut word) = (String::new(), String::new());
    for c in cell.chars().filter(|c| *c != '`').chain([' ']) {
        if c.is_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        // A colon follows the name of a field.
        let simple = SIMPLE.iter().find(|(name, _)| *name == word && c != ':');
        plain.push_str(simple.map_or(word.as_str(), |(_, simple)| simple));
        plain.push(c);
        word.clear();
    }
    plain.trim_end().to_owned()
}

#[test]
fn the_page_has_every_message() {
    let shape = Shape::of_messages();
    let (names, fields) = &shape.enums["Body"];
    let rows = table("| number | `Body` | class | fields |");
    for (i, name) in names.iter().enumerate() {
        let body = Body::deserialize(Reader(&mut Shape::default(), Some(i))).unwrap();
        let bytes = postcard::to_allocvec(&body).unwrap();
        let class = match class(&body) {
            Class::Recovery => "recovery",
            Class::Search => "search",
            Class::Directory => "directory",
            Class::Request => "request",
            Class::Answer => "answer",
        };
        let code = [&*format!("{}", bytes[0]), *name, class, &*fields[name]];
        let row = rows.get(i).map_or(&[][..], Vec::as_slice);
        let page: Vec<String> = row.iter().take(4).map(|cell| plain(cell)).collect();
        assert_eq!(page, code, "docs/protocol.md, messages of a lockspace, number {i}");
    }
    assert_eq!(rows.len(), names.len(), "docs/protocol.md, messages of a lockspace");
}

#[test]
fn the_page_has_every_type_in_the_messages() {
    let page: BTreeMap<String, String> =
        table("| type | is |").iter().map(|row| (plain(row[0]), plain(row[1]))).collect();
    let mut code = Shape::of_messages().types();
    for name in ["Body", "Message"].iter().chain(&ELSEWHERE) {
        assert!(code.remove(*name).is_some(), "{name} is in no message any more");
    }
    for (name, what) in &code {
        assert_eq!(page.get(name), Some(what), "docs/protocol.md, types, {name}");
    }
    assert_eq!(page.len(), code.len(), "docs/protocol.md, types");
}

/// What the types of the messages look like, in the page's words.
#[derive(Default)]
struct Shape {
    structs: BTreeMap<&'static str, String>,
    /// The variants, and what each that was read holds.
    enums: BTreeMap<&'static str, (&'static [&'static str], BTreeMap<&'static str, String>)>,
    visits: BTreeMap<&'static str, usize>,
    /// The type that was read last.
    last: String,
}

impl Shape {
    fn of_messages() -> Shape {
        let mut shape = Shape::default();
        for _ in 0..10_000 {
            Message::deserialize(Reader(&mut shape, None)).unwrap();
            if shape.enums.values().all(|(variants, read)| read.len() == variants.len())
                && shape.enums.contains_key("Wait")
            {
                return shape;
            }
        }
        panic!("not every variant was read: {:?}", shape.enums);
    }

    fn types(&self) -> BTreeMap<String, String> {
        let enums = self.enums.iter().map(|(name, (variants, read))| {
            let variant = |v: &&'static str| match read[v].as_str() {
                "" => (*v).to_owned(),
                what => format!("{v}({what})"),
            };
            let all: Vec<String> = variants.iter().map(variant).collect();
            ((*name).to_owned(), format!("enum: {}", all.join(", ")))
        });
        let structs = self.structs.iter().map(|(name, body)| ((*name).to_owned(), body.clone()));
        structs.chain(enums).collect()
    }

    fn take(&mut self) -> String {
        core::mem::take(&mut self.last)
    }
}

/// Makes up whatever is asked for; of the outermost enumeration the variant with this number, else each in turn.
struct Reader<'a>(&'a mut Shape, Option<usize>);

macro_rules! simple {
    ($($method:ident $visit:ident $value:expr, $name:literal;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            self.0.last = $name.into();
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = de::value::Error;

    simple! {
        deserialize_bool visit_bool false, "bool";
        deserialize_u8 visit_u8 1, "u8";
        deserialize_u16 visit_u16 1, "u16";
        deserialize_u32 visit_u32 1, "u32";
        deserialize_u64 visit_u64 1, "u64";
        deserialize_str visit_str "a", "String";
        deserialize_string visit_str "a", "String";
        deserialize_bytes visit_bytes b"a", "bytes";
        deserialize_byte_buf visit_bytes b"a", "bytes";
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u128 f32 f64 char unit unit_struct tuple_struct map identifier ignored_any
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("no message has had such a type: add it here, and to the page"))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let value = visitor.visit_some(Reader(self.0, None))?;
        self.0.last = format!("Option<{}>", self.0.last);
        Ok(value)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let value = visitor.visit_seq(&mut Parts { shape: self.0, left: 1, read: Vec::new() })?;
        self.0.last = format!("list of {}", self.0.last);
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let mut parts = Parts { shape: self.0, left: len, read: Vec::new() };
        let value = visitor.visit_seq(&mut parts)?;
        self.0.last = format!("({})", parts.read.join(", "));
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let mut parts = Parts { shape: self.0, left: fields.len(), read: Vec::new() };
        let value = visitor.visit_seq(&mut parts)?;
        let body = parts.named(fields);
        self.0.structs.insert(name, body);
        self.0.last = name.into();
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.enums.entry(name).or_insert((variants, BTreeMap::new()));
        let visits = self.0.visits.entry(name).or_default();
        let index = self.1.unwrap_or(*visits % variants.len());
        *visits += 1;
        let value = visitor.visit_enum(Choice { shape: self.0, index })?;
        let what = self.0.take();
        if let Some((_, read)) = self.0.enums.get_mut(name) {
            read.insert(variants[index], what);
        }
        self.0.last = name.into();
        Ok(value)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The parts of a structure, tuple or list.
struct Parts<'a> {
    shape: &'a mut Shape,
    left: usize,
    read: Vec<String>,
}

impl Parts<'_> {
    fn named(&self, fields: &[&str]) -> String {
        let field = |(name, what): (&&str, &String)| format!("{name}: {what}");
        fields.iter().zip(&self.read).map(field).collect::<Vec<_>>().join(", ")
    }
}

impl<'de> SeqAccess<'de> for &mut Parts<'_> {
    type Error = de::value::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Self::Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let value = seed.deserialize(Reader(self.shape, None))?;
        let what = self.shape.last.clone();
        self.read.push(what);
        Ok(Some(value))
    }
}

/// A variant of an enumeration. What it holds is what was read last.
struct Choice<'a> {
    shape: &'a mut Shape,
    index: usize,
}

impl<'de> EnumAccess<'de> for Choice<'_> {
    type Error = de::value::Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self), Self::Error> {
        let index = (self.index as u32).into_deserializer();
        Ok((seed.deserialize::<de::value::U32Deserializer<Self::Error>>(index)?, self))
    }
}

impl<'de> VariantAccess<'de> for Choice<'_> {
    type Error = de::value::Error;

    fn unit_variant(self) -> Result<(), Self::Error> {
        self.shape.last.clear();
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<S::Value, Self::Error> {
        seed.deserialize(Reader(self.shape, None))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        Reader(self.shape, None).deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let mut parts = Parts { shape: self.shape, left: fields.len(), read: Vec::new() };
        let value = visitor.visit_seq(&mut parts)?;
        let body = parts.named(fields);
        parts.shape.last = body;
        Ok(value)
    }
}
