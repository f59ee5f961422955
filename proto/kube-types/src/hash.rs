//! Hashes and suffixes for generated names, in an alphabet that spells no words.
//!
//! Pure: random bytes are handed in. Controllers name ReplicaSets and Pods with it, the API fills
//! `generateName`.

use serde::Serialize;

/// The letters of generated names: no vowels, nothing that looks like another.
pub const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Spells text in [`ALPHABET`], as Kubernetes does with hashes.
pub fn safe_encode(text: &str) -> String {
    text.bytes()
        .map(|b| char::from(ALPHABET[usize::from(b) % ALPHABET.len()]))
        .collect()
}

/// FNV-1a, 32 bits.
pub fn fnv32a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// FNV-1a, 64 bits.
pub fn fnv64a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The hash of a template: stable for equal content, different for each collision count.
///
/// The value takes part as canonical JSON (sorted keys, no nulls), so that field order does not count.
pub fn template_hash<T: Serialize>(
    template: &T,
    collision_count: Option<i32>,
) -> Result<String, serde_json::Error> {
    let mut value = serde_json::to_value(template)?;
    value.sort_all_objects();
    let mut bytes = serde_json::to_vec(&value)?;
    if let Some(count) = collision_count {
        bytes.extend_from_slice(&count.to_le_bytes());
    }
    Ok(safe_encode(&fnv32a(&bytes).to_string()))
}

/// A suffix for a generated name from random bytes: one letter per byte (Kubernetes uses five).
pub fn suffix(random: &[u8]) -> String {
    random
        .iter()
        .map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hashes_are_stable_and_collisions_move_them() {
        let a = template_hash(&json!({"x": 1, "y": [1]}), None).expect("hashes");
        let b = template_hash(&json!({"y": [1], "x": 1}), None).expect("hashes");
        assert_eq!(a, b);
        let c = template_hash(&json!({"x": 1, "y": [1]}), Some(1)).expect("hashes");
        assert_ne!(a, c);
        assert!(a.bytes().all(|b| ALPHABET.contains(&b)));
        assert!(!a.is_empty() && a.len() <= 10);
    }

    #[test]
    fn known_values() {
        assert_eq!(fnv32a(b"a"), 0xe40c_292c);
        assert_eq!(fnv64a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(safe_encode("0"), "4");
        assert_eq!(suffix(&[0, 1, 26]), "bc9");
    }
}
