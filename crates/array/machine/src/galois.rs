//! Arithmetic of the second parity: bytes as elements of the field with 256 elements, by the polynomial 0x11d, as other
//! implementations of RAID-6 have it (docs/design/array.md 1.3). The sum is the exclusive or.

/// An element.
pub(crate) type Element = u8;

/// Bytes that are multiplied at once. The compiler makes vector instructions of a loop over so many.
const CHUNK: usize = 64;

/// Twice an element.
const fn double(x: Element) -> Element {
    (x << 1) ^ if x & 0x80 == 0 { 0 } else { 0x1d }
}

/// The product of two elements.
pub(crate) const fn times(x: Element, y: Element) -> Element {
    let (mut product, mut x, mut rest) = (0, x, y);
    while rest != 0 {
        if rest & 1 == 1 {
            product ^= x;
        }
        x = double(x);
        rest >>= 1;
    }
    product
}

/// The coefficient of a data unit in the second parity: a power of two. Two of the first 255 units never have the same.
pub(crate) fn coefficient(unit: usize) -> Element {
    (0..unit % 255).fold(1, |power, _| double(power))
}

/// The element that gives 1 with this one; 0 for 0, which has none.
pub(crate) fn inverse(x: Element) -> Element {
    // x has the order 255, or a divisor of it: its 254th power is what it lacks.
    (0..254).fold(1, |power, _| times(power, x))
}

/// Adds to each byte of `into`.
pub(crate) fn add(into: &mut [u8], from: &[u8]) {
    for (a, b) in into.iter_mut().zip(from) {
        *a ^= b;
    }
}

/// Adds the product of a factor and each byte of `from`.
pub(crate) fn add_times(into: &mut [u8], factor: Element, from: &[u8]) {
    if factor == 1 {
        return add(into, from);
    }
    let length = into.len().min(from.len());
    let (into, rest_into) = into[..length].as_chunks_mut::<CHUNK>();
    let (from, rest_from) = from[..length].as_chunks::<CHUNK>();
    for (into, from) in into.iter_mut().zip(from) {
        add_chunk(into, factor, *from);
    }
    for (a, b) in rest_into.iter_mut().zip(rest_from) {
        *a ^= times(factor, *b);
    }
}

fn add_chunk(into: &mut [u8; CHUNK], factor: Element, mut from: [u8; CHUNK]) {
    let mut rest = factor;
    while rest != 0 {
        if rest & 1 == 1 {
            add(into, &from);
        }
        for x in &mut from {
            *x = double(*x);
        }
        rest >>= 1;
    }
}

/// Multiplies each byte by a factor.
pub(crate) fn scale(bytes: &mut [u8], factor: Element) {
    let from = bytes.to_vec();
    bytes.fill(0);
    add_times(bytes, factor, &from);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The product as the definition has it: polynomials over the field with two elements, and the rest of a division.
    fn slowly(x: Element, y: Element) -> Element {
        let product = (0..8)
            .filter(|bit| y >> bit & 1 == 1)
            .fold(0_u32, |sum, bit| sum ^ (u32::from(x) << bit));
        let rest = (8..15).rev().fold(product, |rest, bit| match rest >> bit & 1 {
            1 => rest ^ (0x11d << (bit - 8)),
            _ => rest,
        });
        rest as Element
    }

    #[test]
    fn products_are_those_of_the_definition() {
        for x in 0..=255 {
            for y in 0..=255 {
                assert_eq!(times(x, y), slowly(x, y), "{x} and {y}");
            }
            let one = if x == 0 { 0 } else { 1 };
            assert_eq!(times(x, inverse(x)), one, "{x}");
        }
    }

    #[test]
    fn no_two_units_have_the_same_coefficient() {
        let all: std::collections::BTreeSet<Element> = (0..255).map(coefficient).collect();
        assert_eq!((all.len(), all.contains(&0)), (255, false));
        // As in the literature: {02} to the power of the unit.
        assert_eq!([0, 1, 7, 8].map(coefficient), [1, 2, 0x80, 0x1d]);
    }

    #[test]
    fn blocks_are_multiplied_byte_by_byte() {
        for length in [0, 1, 63, 64, 65, 200] {
            let from: Vec<u8> = (0..length).map(|at| (at * 7 + 3) as u8).collect();
            for factor in [0, 1, 2, 0x1d, 0x80, 255] {
                let mut sum: Vec<u8> = (0..length).map(|at| at as u8).collect();
                let expected: Vec<u8> =
                    sum.iter().zip(&from).map(|(a, b)| a ^ times(factor, *b)).collect();
                add_times(&mut sum, factor, &from);
                assert_eq!(sum, expected, "{length} bytes by {factor}");
                let mut scaled = from.clone();
                scale(&mut scaled, factor);
                assert!(scaled.iter().zip(&from).all(|(a, b)| *a == times(factor, *b)));
            }
        }
    }
}
