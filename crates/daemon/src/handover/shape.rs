//! What the state that a restart hands over looks like, as text: every structure and enumeration in
//! it with its fields and variants in order, found by pretending to read one. The encoding has no
//! names, so that nothing else than [`VERSION`](super::VERSION) tells one state from another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer as _, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::VERSION;
use crate::shard::ShardImage;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/state.txt");

#[test]
fn the_version_of_the_state_changes_with_it() {
    let shape = format!("version {VERSION}\n{}", shape_of::<ShardImage<'static>>());
    let golden = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    if shape == golden {
        return;
    }
    let version = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let changed: Vec<&str> = shape.lines().filter(|l| !golden.lines().any(|g| g == *l)).collect();
    assert_ne!(
        version(&shape),
        version(&golden),
        "the state that a restart hands over has changed: make VERSION in handover/mod.rs another one \
         (docs/restart.md), then run this test with LOCKIFY_GOLDEN set. New or changed:\n{}",
        changed.join("\n")
    );
    assert!(
        std::env::var_os("LOCKIFY_GOLDEN").is_some(),
        "VERSION has changed: run this test with LOCKIFY_GOLDEN set, and look at what it writes"
    );
    std::fs::write(GOLDEN, shape).unwrap();
}

#[test]
fn what_changes_a_state_changes_its_shape() {
    #[derive(serde::Deserialize)]
    #[serde(rename = "T")]
    struct One {
        _a: u32,
        _b: Option<Choice>,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename = "T")]
    struct Other {
        _b: Option<Choice>,
        _a: u32,
    }
    #[derive(serde::Deserialize)]
    #[expect(dead_code, reason = "only its shape counts")]
    enum Choice {
        _None,
        _Some(Vec<(u8, String)>),
        _Named { _x: bool },
    }
    assert_eq!(
        shape_of::<One>(),
        "enum Choice { _None, _Some([(u8, text)]), _Named {_x: bool} }\n\
         struct T { _a: u32, _b: option Choice }\n"
    );
    assert_ne!(shape_of::<One>(), shape_of::<Other>());
}

/// So often nothing new was read, that there is nothing new.
const QUIET: usize = 200;

fn shape_of<T: for<'de> de::Deserialize<'de>>() -> String {
    let mut shape = Shape::default();
    let mut quiet = 0;
    loop {
        let known = (shape.chosen.len(), shape.types.len());
        shape.path.clear();
        let result = T::deserialize(Reader(&mut shape));
        let news = known != (shape.chosen.len(), shape.types.len());
        quiet = if news { 0 } else { quiet + 1 };
        match result {
            _ if quiet < QUIET => {}
            Ok(_) => break,
            // What was made up is refused where it must hold together: nothing holds together.
            Err(_) => {
                quiet = 0;
                let at = std::mem::take(&mut shape.refused);
                assert!(shape.empty.insert(at.clone()), "cannot be made up: {at:?}");
            }
        }
        shape.refused.clear();
    }
    let mut text = String::new();
    for (name, bodies) in &shape.types {
        for body in bodies {
            let _ = writeln!(text, "struct {name} {{ {body} }}");
        }
    }
    for ((name, variants), payloads) in &shape.enums {
        let of = |variant: &&'static str| {
            format!("{variant}{}", payloads.get(variant).map_or("", String::as_str))
        };
        let all: Vec<String> = variants.iter().map(of).collect();
        let _ = writeln!(text, "enum {name} {{ {} }}", all.join(", "));
    }
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n") + "\n"
}

type Enum = (&'static str, &'static [&'static str]);

#[derive(Default)]
struct Shape {
    /// Structures: several bodies, if the type has parameters.
    types: BTreeMap<&'static str, BTreeSet<String>>,
    enums: BTreeMap<Enum, BTreeMap<&'static str, String>>,
    /// Variants that have been read.
    chosen: BTreeSet<(Enum, usize)>,
    visits: BTreeMap<Enum, usize>,
    /// What was just read.
    last: String,
    /// Where the reader is; where it was refused; below which places lists are left empty.
    path: Vec<String>,
    refused: Vec<String>,
    empty: BTreeSet<Vec<String>>,
}

impl Shape {
    fn is_empty_here(&self) -> bool {
        (0..=self.path.len()).any(|n| self.empty.contains(&self.path[..n]))
    }

    /// A structure of this name has been read.
    fn is(&mut self, name: &'static str, body: String) {
        if !self.is_empty_here() {
            self.types.entry(name).or_default().insert(body);
        }
        self.last = name.into();
    }

    /// Reads a part of this name; its type as text.
    fn part<'de, S: DeserializeSeed<'de>>(
        &mut self,
        name: &str,
        seed: S,
    ) -> Result<(S::Value, String), de::value::Error> {
        self.path.push(name.to_owned());
        let value = seed.deserialize(Reader(self));
        if value.is_err() && self.refused.is_empty() {
            self.refused.clone_from(&self.path);
        }
        self.path.pop();
        Ok((value?, std::mem::take(&mut self.last)))
    }
}

/// Makes up whatever is asked for.
struct Reader<'a>(&'a mut Shape);

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
        deserialize_i8 visit_i8 1, "i8";
        deserialize_i16 visit_i16 1, "i16";
        deserialize_i32 visit_i32 1, "i32";
        deserialize_i64 visit_i64 1, "i64";
        deserialize_i128 visit_i128 1, "i128";
        deserialize_u8 visit_u8 1, "u8";
        deserialize_u16 visit_u16 1, "u16";
        deserialize_u32 visit_u32 1, "u32";
        deserialize_u64 visit_u64 1, "u64";
        deserialize_u128 visit_u128 1, "u128";
        deserialize_f32 visit_f32 1.0, "f32";
        deserialize_f64 visit_f64 1.0, "f64";
        deserialize_char visit_char 'a', "char";
        deserialize_str visit_str "a", "text";
        deserialize_string visit_str "a", "text";
        deserialize_bytes visit_bytes b"a", "bytes";
        deserialize_byte_buf visit_bytes b"a", "bytes";
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.0.last = "nothing".into();
        visitor.visit_unit()
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("a state that says itself what it is cannot be read"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.deserialize_any(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        if self.0.is_empty_here() {
            return visitor.visit_none();
        }
        let value = visitor.visit_some(Reader(self.0))?;
        self.0.last.insert_str(0, "option ");
        Ok(value)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let value = visitor.visit_newtype_struct(Reader(self.0))?;
        let body = std::mem::take(&mut self.0.last);
        self.0.is(name, body);
        Ok(value)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let names: &[&str] = if self.0.is_empty_here() { &[] } else { &["[]"] };
        let mut parts = Parts { shape: self.0, names: names.iter(), read: Vec::new() };
        let value = visitor.visit_seq(&mut parts)?;
        let inner = parts.read.join(", ");
        self.0.last = format!("[{inner}]");
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let names = vec![""; len];
        let mut parts = Parts { shape: self.0, names: names.iter(), read: Vec::new() };
        let value = visitor.visit_seq(&mut parts)?;
        let inner = parts.read.join(", ");
        self.0.last = format!("({inner})");
        Ok(value)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let value = Reader(self.0).deserialize_tuple(len, visitor)?;
        let body = std::mem::take(&mut self.0.last);
        self.0.is(name, body);
        Ok(value)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let names: &[&str] = if self.0.is_empty_here() { &[] } else { &["key", "value"] };
        let mut parts = Parts { shape: self.0, names: names.iter(), read: Vec::new() };
        let value = visitor.visit_map(&mut parts)?;
        let inner = parts.read.join(" -> ");
        self.0.last = format!("[{inner}]");
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let mut parts = Parts { shape: self.0, names: fields.iter(), read: Vec::new() };
        let value = visitor.visit_seq(&mut parts)?;
        let body = parts.named(fields);
        self.0.is(name, body);
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let this = (name, variants);
        self.0.enums.entry(this).or_default();
        let fresh = (0..variants.len()).find(|i| !self.0.chosen.contains(&(this, *i)));
        // In turn, as what is below a variant may have variants that have not been read.
        let visits = self.0.visits.entry(this).or_default();
        *visits += 1;
        let index = fresh.unwrap_or(*visits % variants.len().max(1));
        if !self.0.is_empty_here() {
            self.0.chosen.insert((this, index));
        }
        let value = visitor.visit_enum(Choice { shape: self.0, this, index })?;
        self.0.last = name.into();
        Ok(value)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The parts of a structure, list or map, by name.
struct Parts<'a, 'n> {
    shape: &'a mut Shape,
    names: std::slice::Iter<'n, &'n str>,
    read: Vec<String>,
}

impl Parts<'_, '_> {
    fn named(&self, fields: &[&str]) -> String {
        let field = |(name, what): (&&str, &String)| format!("{name}: {what}");
        fields.iter().zip(&self.read).map(field).collect::<Vec<_>>().join(", ")
    }

    fn next<'de, S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, de::value::Error> {
        let Some(name) = self.names.next() else { return Ok(None) };
        let (value, what) = self.shape.part(name, seed)?;
        self.read.push(what);
        Ok(Some(value))
    }
}

impl<'de> SeqAccess<'de> for &mut Parts<'_, '_> {
    type Error = de::value::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Self::Error> {
        self.next(seed)
    }
}

impl<'de> MapAccess<'de> for &mut Parts<'_, '_> {
    type Error = de::value::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Self::Error> {
        self.next(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, Self::Error> {
        self.next(seed)?.ok_or_else(|| de::Error::custom("a key without a value"))
    }
}

/// A variant that has not been read yet, or the first one.
struct Choice<'a> {
    shape: &'a mut Shape,
    this: Enum,
    index: usize,
}

impl Choice<'_> {
    fn has(self, payload: String) {
        if self.shape.is_empty_here() {
            return;
        }
        let variant = self.this.1[self.index];
        self.shape.enums.entry(self.this).or_default().insert(variant, payload);
    }
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
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<S::Value, Self::Error> {
        let (value, what) = self.shape.part(self.this.1[self.index], seed)?;
        self.has(format!("({what})"));
        Ok(value)
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let value = Reader(self.shape).deserialize_tuple(len, visitor)?;
        let what = std::mem::take(&mut self.shape.last);
        self.has(what);
        Ok(value)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let mut parts = Parts { shape: self.shape, names: fields.iter(), read: Vec::new() };
        let value = visitor.visit_seq(&mut parts)?;
        let body = parts.named(fields);
        self.has(format!(" {{{body}}}"));
        Ok(value)
    }
}
