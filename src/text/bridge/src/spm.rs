//! SentencePiece vocabularies as byte-pair merges: a token can be made from any two tokens that
//! spell it, the token with the best score first.

use std::collections::HashMap;

/// The merges of `pieces` (token text, score), best first. Ties are broken as the usual conversion
/// to tokenizer.json does: by the lengths of the parts, then by the order of the ids.
pub fn merges(pieces: &[(&str, u32, f32)]) -> Vec<(String, String)> {
    let ids: HashMap<&str, u32> = pieces.iter().map(|&(text, id, _)| (text, id)).collect();
    let mut found: Vec<(f32, usize, usize, usize, (u32, u32), (&str, &str))> = Vec::new();
    for (order, &(text, _, score)) in pieces.iter().enumerate() {
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right)) {
                found.push((
                    score,
                    left.chars().count(),
                    right.chars().count(),
                    order,
                    (l, r),
                    (left, right),
                ));
            }
        }
    }
    found.sort_by(|a, b| {
        b.0.total_cmp(&a.0)
            .then(b.1.cmp(&a.1))
            .then(b.2.cmp(&a.2))
            .then(a.3.cmp(&b.3))
            .then(a.4.cmp(&b.4))
    });
    found
        .into_iter()
        .map(|f| (f.5 .0.to_string(), f.5 .1.to_string()))
        .collect()
}
