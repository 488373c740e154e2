//! The shape of types under serde, as text: every structure and enumeration with its fields and
//! variants in order, found by pretending to read values. For tests of encodings without names,
//! which do not describe their content.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer as _,
    MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// A structure or an enumeration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Type {
    /// `struct` or `enum`.
    pub kind: &'static str,
    /// Without module and parameters: several types may have the same name.
    pub name: &'static str,
    /// A structure's fields, `name: type`, or an enumeration's variants, `Name(what it holds)`.
    pub parts: Vec<String>,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {{ {} }}", self.kind, self.name, self.parts.join(", "))
    }
}

/// So often nothing new was read, that there is nothing new.
const QUIET: usize = 200;

/// All types in a `T`, and `T`.
///
/// # Panics
/// If a value cannot be made up: it holds what nothing here has held yet, or what was made up is
/// refused even where the structure has nothing but empty lists.
pub fn types_of<T: DeserializeOwned>() -> BTreeSet<Type> {
    let mut walk = Walk::default();
    let mut quiet = 0;
    loop {
        let known = walk.known();
        walk.refused = None;
        let result = walk.part(PhantomData::<T>);
        quiet = if known == walk.known() { quiet + 1 } else { 0 };
        match result {
            _ if quiet < QUIET => {}
            Ok(_) => break,
            // An invented value is refused where parts must fit each other: nothing fits.
            Err(error) => {
                let fresh = walk.refused.is_some_and(|refused| walk.hollow.insert(refused));
                assert!(fresh, "cannot be made up: {error}");
                quiet = 0;
            }
        }
    }
    let mut types = walk.structs;
    for ((name, variants), Variants { held, .. }) in walk.enums {
        let parts = variants.iter().zip(held).map(|(variant, held)| match held.as_deref() {
            None | Some("") => (*variant).into(),
            Some(held) => format!("{variant}({held})"),
        });
        types.insert(Type { kind: "enum", name, parts: parts.collect() });
    }
    types
}

type Error = de::value::Error;

/// A type by its name and the names of its fields or variants.
type Id = (&'static str, &'static [&'static str]);

struct Variants {
    /// The content of each variant, if it has been read.
    held: Vec<Option<String>>,
    visits: usize,
}

#[derive(Default)]
struct Walk {
    structs: BTreeSet<Type>,
    enums: BTreeMap<Id, Variants>,
    /// The text that was just read.
    last: String,
    /// The structure that was just read whole.
    whole: Option<Id>,
    /// The one that was whole, and yet refused.
    refused: Option<Id>,
    /// Those whose lists are left empty, and in how many of them the reader is.
    hollow: BTreeSet<Id>,
    depth: usize,
}

impl Walk {
    fn known(&self) -> (usize, usize) {
        (self.structs.len(), self.enums.values().flat_map(|e| &e.held).flatten().count())
    }

    /// Reads a part of something; its type as text.
    fn part<'de, S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<(S::Value, String), Error> {
        self.whole = None;
        let value = seed.deserialize(Reader(self));
        if value.is_err() && self.refused.is_none() {
            self.refused = self.whole;
        }
        Ok((value?, std::mem::take(&mut self.last)))
    }

    /// Reads so many parts; their types as text.
    fn parts<'de, V: Visitor<'de>>(
        &mut self,
        count: usize,
        visitor: V,
    ) -> Result<(V::Value, Vec<String>), Error> {
        let mut parts = Parts { walk: self, left: count, read: Vec::new() };
        Ok((visitor.visit_seq(&mut parts)?, parts.read))
    }

    fn fields<'de, V: Visitor<'de>>(
        &mut self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<(V::Value, Vec<String>), Error> {
        let (value, read) = self.parts(fields.len(), visitor)?;
        let named = fields.iter().zip(read).map(|(name, what)| format!("{name}: {what}"));
        Ok((value, named.collect()))
    }

    /// A structure of this name has been read.
    fn is(&mut self, name: &'static str, parts: Vec<String>) {
        if self.depth == 0 {
            self.structs.insert(Type { kind: "struct", name, parts });
        }
        self.last = name.into();
    }
}

/// Makes up whatever is asked for.
struct Reader<'a>(&'a mut Walk);

macro_rules! simple {
    ($($method:ident $visit:ident $value:expr, $name:literal;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.0.last = $name.into();
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Error;

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
        i8 i16 i32 i64 i128 u128 f32 f64 char unit unit_struct tuple_struct identifier ignored_any
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let unknown = de::Unexpected::Other("what lockify-shape cannot make up yet");
        Err(de::Error::invalid_type(unknown, &visitor))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.depth > 0 {
            return visitor.visit_none();
        }
        let value = visitor.visit_some(Reader(self.0))?;
        self.0.last = format!("Option<{}>", self.0.last);
        Ok(value)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let value = visitor.visit_newtype_struct(Reader(self.0))?;
        let what = std::mem::take(&mut self.0.last);
        self.0.is(name, vec![what]);
        Ok(value)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let (value, read) = self.0.parts(usize::from(self.0.depth == 0), visitor)?;
        self.0.last = format!("list of {}", read.concat());
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        let (value, read) = self.0.parts(len, visitor)?;
        self.0.last = format!("({})", read.join(", "));
        Ok(value)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = if self.0.depth == 0 { 2 } else { 0 };
        let mut parts = Parts { walk: self.0, left, read: Vec::new() };
        let value = visitor.visit_map(&mut parts)?;
        parts.walk.last = format!("map of {}", parts.read.join(" to "));
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let hollow = usize::from(self.0.hollow.contains(&(name, fields)));
        self.0.depth += hollow;
        let read = self.0.fields(fields, visitor);
        if let Ok((_, read)) = &read {
            self.0.is(name, read.clone());
            self.0.whole = Some((name, fields));
        }
        self.0.depth -= hollow;
        Ok(read?.0)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let this = (name, variants);
        let unread = || Variants { held: vec![None; variants.len()], visits: 0 };
        let known = self.0.enums.entry(this).or_insert_with(unread);
        // In turn, because a type below a variant may have variants that have not been read.
        known.visits += 1;
        let fresh = known.held.iter().position(Option::is_none);
        let index = fresh.unwrap_or(known.visits % variants.len().max(1));
        if self.0.depth == 0 {
            // Before it is read, as it may hold another value of this type.
            known.held[index].get_or_insert_default();
        }
        let value = visitor.visit_enum(Choice { walk: self.0, this, index })?;
        self.0.last = name.into();
        Ok(value)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The parts of a structure, tuple, list or map.
struct Parts<'a> {
    walk: &'a mut Walk,
    left: usize,
    read: Vec<String>,
}

impl<'de> SeqAccess<'de> for &mut Parts<'_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let (value, what) = self.walk.part(seed)?;
        self.read.push(what);
        Ok(Some(value))
    }
}

impl<'de> MapAccess<'de> for &mut Parts<'_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        self.next_element_seed(seed)?.ok_or_else(|| de::Error::custom("a key without a value"))
    }
}

/// A variant of an enumeration.
struct Choice<'a> {
    walk: &'a mut Walk,
    this: Id,
    index: usize,
}

impl Choice<'_> {
    fn holds(self, what: String) {
        if self.walk.depth == 0
            && let Some(known) = self.walk.enums.get_mut(&self.this)
        {
            known.held[self.index] = Some(what);
        }
    }
}

impl<'de> EnumAccess<'de> for Choice<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        let index = (self.index as u32).into_deserializer();
        Ok((seed.deserialize::<de::value::U32Deserializer<Error>>(index)?, self))
    }
}

impl<'de> VariantAccess<'de> for Choice<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Error> {
        let (value, what) = self.walk.part(seed)?;
        self.holds(what);
        Ok(value)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        let (value, read) = self.walk.parts(len, visitor)?;
        self.holds(read.join(", "));
        Ok(value)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let (value, read) = self.walk.fields(fields, visitor)?;
        self.holds(read.join(", "));
        Ok(value)
    }
}
