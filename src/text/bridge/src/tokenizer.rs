//! Text to token ids. Merges and added-token matching are Hugging Face's; normalising and cutting
//! run in linear time for the patterns that `split` knows, and through Hugging Face's own
//! pre-tokenizers for the others.

use crate::byte_table::{byte_token, ByteChars, ByteTable, FLAG_ADDED, FLAG_KNOWN, FLAG_SPECIAL};
use crate::split::{self, Cuts, Stage};
use crate::{spm, Fault, Outcome};
use ahash::{AHashMap, AHashSet};
use serde_json::Value;
use std::borrow::Cow;
use std::str::FromStr;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, AddedVocabulary, Model, ModelWrapper, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizer,
    PreTokenizerWrapper,
};
use unicode_normalization_alignments::{is_nfc, UnicodeNormalization}; // the tables that Hugging Face normalises by

const SPACE_MARK: &str = "\u{2581}"; // SentencePiece's visible space
pub const NORMAL: i32 = 1; // token types of GGUF
const UNKNOWN: i32 = 2;
pub const CONTROL: i32 = 3;
pub const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;
pub const TOKEN_COUNT_MAX: usize = 1 << 22;

enum Cutting {
    Linear {
        text_form: TextForm,
        stages: Vec<Stage>,
        byte_level: bool,
    },
    General {
        normalizer: Option<NormalizerWrapper>,
        pre_tokenizer: Option<PreTokenizerWrapper>,
    },
}

#[derive(Clone, Copy, PartialEq)]
enum TextForm {
    AsIs,
    Nfc,
    SpaceMarks { prefix: bool },
}

pub struct Tokenizer {
    bpe: BPE,
    added: AddedVocabulary,
    added_without_special: AddedVocabulary,
    cutting: Cutting,
    byte_chars: ByteChars,
    pub table: ByteTable,
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
    pub strip_leading_space: bool,
}

fn input<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> Fault + '_ {
    move |e| Fault::Input(format!("{what}: {e}"))
}

impl Tokenizer {
    pub fn byte_level(pre: &str, tokens: &[&str], merges: &[&str], types: &[i32]) -> Outcome<Tokenizer> {
        let family = split::family(pre).ok_or_else(|| {
            Fault::Unsupported(format!(
                "pre-tokenizer '{pre}' is not known; known are {}",
                split::FAMILY_NAMES
            ))
        })?;
        let vocab = vocabulary(tokens)?;
        let mut pairs = Vec::with_capacity(merges.len());
        for merge in merges {
            let cut = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(i, _)| i);
            let (left, right) = cut
                .map(|i| (&merge[..i], &merge[i + 1..]))
                .ok_or_else(|| Fault::Input(format!("merge '{merge}' has no space")))?;
            pairs.push((left.to_string(), right.to_string()));
        }
        if pairs.is_empty() && family.merges_from_ranks {
            pairs = merges_by_rank(&vocab, tokens, types);
        }
        check_merges(&vocab, &pairs)?;
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, pairs)
            .ignore_merges(family.ignore_merges)
            .build()
            .map_err(input("merges"))?;
        let byte_chars = ByteChars::new();
        let mut table = ByteTable::default();
        for (id, token) in tokens.iter().enumerate() {
            match types.get(id).copied().unwrap_or(1) {
                CONTROL | UNKNOWN => table.push(token.as_bytes(), FLAG_KNOWN | FLAG_SPECIAL | FLAG_ADDED),
                USER_DEFINED => table.push(token.as_bytes(), FLAG_KNOWN | FLAG_ADDED),
                _ => table.push(&byte_chars.decode(token), FLAG_KNOWN),
            }
        }
        let text_form = if family.nfc { TextForm::Nfc } else { TextForm::AsIs };
        let cutting = match family.cuts {
            Cuts::Stages(stages) => Cutting::Linear {
                text_form,
                stages,
                byte_level: true,
            },
            Cuts::Json(pre_tokenizer) => Cutting::General {
                normalizer: None,
                pre_tokenizer: Some(serde_json::from_str(pre_tokenizer).map_err(input("pre-tokenizer"))?),
            },
        };
        Self::assemble(bpe, added_tokens(tokens, types), cutting, byte_chars, table)
    }

    pub fn sentence_piece(
        tokens: &[&str],
        scores: &[f32],
        types: &[i32],
        add_space_prefix: bool,
    ) -> Outcome<Tokenizer> {
        if scores.len() != tokens.len() {
            return Err(Fault::Input(format!(
                "SentencePiece tokenizer has {} scores, wanted {}",
                scores.len(),
                tokens.len()
            )));
        }
        let kind = |id: usize| types.get(id).copied().unwrap_or(1);
        let (tokens, scores) = with_marked_spaces(tokens, scores, types);
        let tokens: Vec<&str> = tokens.iter().map(Cow::as_ref).collect();
        let vocab = vocabulary(&tokens)?;
        let pieces: Vec<(&str, u32, f32)> = tokens
            .iter()
            .enumerate()
            .filter(|&(id, token)| !matches!(kind(id), CONTROL | UNKNOWN | BYTE) && !token.is_empty())
            .map(|(id, &token)| (token, id as u32, scores[id]))
            .collect();
        let pairs = spm::merges(&pieces);
        check_merges(&vocab, &pairs)?;
        let unknown = (0..tokens.len())
            .find(|&id| kind(id) == UNKNOWN)
            .map(|id| tokens[id].to_string());
        let mut builder = BPE::builder()
            .vocab_and_merges(vocab, pairs)
            .byte_fallback(true)
            .fuse_unk(true);
        if let Some(unknown) = unknown {
            builder = builder.unk_token(unknown);
        }
        let bpe = builder.build().map_err(input("merges"))?;
        let mut table = ByteTable::default();
        for (id, token) in tokens.iter().enumerate() {
            match (kind(id), byte_token(token)) {
                (CONTROL | UNKNOWN, _) => table.push(token.as_bytes(), FLAG_KNOWN | FLAG_SPECIAL | FLAG_ADDED),
                (BYTE, Some(byte)) => table.push(&[byte], FLAG_KNOWN),
                (USER_DEFINED, _) => table.push(token.replace(SPACE_MARK, " ").as_bytes(), FLAG_KNOWN | FLAG_ADDED),
                _ => table.push(token.replace(SPACE_MARK, " ").as_bytes(), FLAG_KNOWN),
            }
        }
        let cutting = Cutting::Linear {
            text_form: TextForm::SpaceMarks {
                prefix: add_space_prefix,
            },
            stages: Vec::new(),
            byte_level: false,
        };
        let mut made = Self::assemble(bpe, added_tokens(&tokens, types), cutting, ByteChars::new(), table)?;
        made.strip_leading_space = add_space_prefix;
        Ok(made)
    }

    pub fn from_json(text: &str) -> Outcome<Tokenizer> {
        let loaded = tokenizers::Tokenizer::from_str(text).map_err(|e| Fault::Input(format!("tokenizer.json: {e}")))?;
        let ModelWrapper::BPE(bpe) = loaded.get_model() else {
            return Err(Fault::Unsupported("tokenizer.json has a model that is not BPE".into()));
        };
        if bpe.dropout.is_some_and(|p| p != 0.0) {
            return Err(Fault::Unsupported("tokenizer.json asks for dropout".into()));
        }
        let byte_chars = ByteChars::new();
        // The parts as JSON again: their fields are private, their JSON is a published format.
        let part = |value: serde_json::Result<Value>| value.map_err(input("tokenizer.json"));
        let decoder = part(serde_json::to_value(loaded.get_decoder()))?;
        let strips_space = decoder_strips_space(&decoder)?;
        let decoder = decoder.to_string();
        let normalizer = part(serde_json::to_value(loaded.get_normalizer()))?;
        let pre_tokenizer = part(serde_json::to_value(loaded.get_pre_tokenizer()))?;
        let table = json_table(&loaded, bpe, &byte_chars, decoder.contains("\"ByteLevel\""))?;
        let added = loaded.get_added_vocabulary().clone();
        let any_normalized = added.get_added_tokens_decoder().values().any(|t| t.normalized);
        let linear = json_text_form(&normalizer)
            .filter(|form| !any_normalized || *form == TextForm::AsIs) // their normal form is then their own
            .and_then(|text_form| {
                let (stages, byte_level) =
                    split::from_json(&pre_tokenizer, matches!(text_form, TextForm::SpaceMarks { .. }))?;
                Some(Cutting::Linear {
                    text_form,
                    stages,
                    byte_level,
                })
            });
        let cutting = linear.unwrap_or_else(|| Cutting::General {
            normalizer: loaded.get_normalizer().cloned(),
            pre_tokenizer: loaded.get_pre_tokenizer().cloned(),
        });
        let mut made = Self::assemble(bpe.clone(), Vec::new(), cutting, byte_chars, table)?;
        made.added_without_special = added.clone();
        made.added_without_special.set_encode_special_tokens(true);
        made.added = added;
        made.strip_leading_space = strips_space;
        (made.prefix, made.suffix) = json_affixes(&loaded)?;
        Ok(made)
    }

    fn assemble(
        bpe: BPE,
        added: Vec<AddedToken>,
        cutting: Cutting,
        byte_chars: ByteChars,
        table: ByteTable,
    ) -> Outcome<Tokenizer> {
        let mut vocabulary = AddedVocabulary::new();
        vocabulary
            .add_tokens::<NormalizerWrapper>(added, &bpe, None)
            .map_err(input("added tokens"))?;
        let mut without_special = vocabulary.clone();
        without_special.set_encode_special_tokens(true);
        Ok(Tokenizer {
            bpe,
            added: vocabulary,
            added_without_special: without_special,
            cutting,
            byte_chars,
            table,
            prefix: Vec::new(),
            suffix: Vec::new(),
            strip_leading_space: false,
        })
    }

    /// The ids of the text itself, without prefix and suffix. Tokens added as plain words are always
    /// matched; control tokens only with parse_special.
    pub fn encode(&self, text: &str, parse_special: bool) -> Outcome<Vec<u32>> {
        let added = if parse_special {
            &self.added
        } else {
            &self.added_without_special
        };
        let fault = |e: tokenizers::Error| Fault::Input(format!("encode: {e}"));
        let splits = match &self.cutting {
            Cutting::Linear {
                text_form,
                stages,
                byte_level,
            } => {
                let mut splits = added.extract_and_normalize::<NormalizerWrapper>(None, text);
                splits
                    .tokenize(|piece| self.linear(piece.get(), *text_form, stages, *byte_level))
                    .map_err(fault)?;
                splits
            }
            Cutting::General {
                normalizer,
                pre_tokenizer,
            } => {
                let mut splits = added.extract_and_normalize(normalizer.as_ref(), text);
                if let Some(pre_tokenizer) = pre_tokenizer {
                    pre_tokenizer.pre_tokenize(&mut splits).map_err(fault)?;
                }
                splits.tokenize(|piece| self.bpe.tokenize(piece.get())).map_err(fault)?;
                splits
            }
        };
        let mut ids = Vec::new();
        for (_, _, tokens) in splits.get_splits(OffsetReferential::Original, OffsetType::None) {
            ids.extend(tokens.iter().flatten().map(|t| t.id));
        }
        Ok(ids)
    }

    fn linear(
        &self,
        text: &str,
        form: TextForm,
        stages: &[Stage],
        byte_level: bool,
    ) -> tokenizers::Result<Vec<tokenizers::Token>> {
        let text: Cow<str> = match form {
            TextForm::Nfc if !text.is_ascii() && !is_nfc(text) => Cow::Owned(text.nfc().map(|(c, _)| c).collect()),
            TextForm::AsIs | TextForm::Nfc => Cow::Borrowed(text),
            TextForm::SpaceMarks { prefix } => Cow::Owned(format!(
                "{}{}",
                if prefix { SPACE_MARK } else { "" },
                text.replace(' ', SPACE_MARK)
            )),
        };
        let mut tokens = Vec::new();
        let mut mapped = String::new();
        for piece in split::pieces(stages, &text) {
            let piece = &text[piece];
            if byte_level {
                mapped.clear();
                mapped.extend(piece.bytes().map(|b| self.byte_chars.to_char[b as usize]));
                tokens.extend(self.bpe.tokenize(&mapped)?);
            } else {
                tokens.extend(self.bpe.tokenize(piece)?);
            }
        }
        Ok(tokens)
    }
}

fn vocabulary(tokens: &[&str]) -> Outcome<AHashMap<String, u32>> {
    if tokens.is_empty() || tokens.len() > TOKEN_COUNT_MAX {
        return Err(Fault::Input(format!(
            "vocabulary has {} tokens, wanted 1 to {TOKEN_COUNT_MAX}",
            tokens.len()
        )));
    }
    Ok(tokens
        .iter()
        .enumerate()
        .map(|(id, token)| (token.to_string(), id as u32))
        .collect())
}

/// The merges of a vocabulary ordered by rank, as tiktoken's: two tokens join if they spell a token, the one of lowest rank first.
fn merges_by_rank(vocab: &AHashMap<String, u32>, tokens: &[&str], types: &[i32]) -> Vec<(String, String)> {
    let is_plain = |id: u32| types.get(id as usize).is_none_or(|&kind| kind == NORMAL);
    let find = |part: &str| vocab.get(part).copied().filter(|&id| is_plain(id));
    let mut pairs = Vec::new();
    for (_, &token) in tokens.iter().enumerate().filter(|&(id, _)| is_plain(id as u32)) {
        let mut cuts: Vec<(u32, u32, usize)> = token
            .char_indices()
            .skip(1)
            .filter_map(|(at, _)| Some((find(&token[..at])?, find(&token[at..])?, at)))
            .collect();
        cuts.sort_unstable();
        pairs.extend(
            cuts.iter()
                .map(|&(_, _, at)| (token[..at].to_string(), token[at..].to_string())),
        );
    }
    pairs
}

fn check_merges(vocab: &AHashMap<String, u32>, merges: &[(String, String)]) -> Outcome<()> {
    for (left, right) in merges {
        for part in [left, right, &format!("{left}{right}")] {
            if !vocab.contains_key(part) {
                return Err(Fault::Input(format!(
                    "merge '{left} {right}' needs token '{part}', which the vocabulary has not"
                )));
            }
        }
    }
    Ok(())
}

/// Gemma's runs of spaces are user-defined tokens, which GGUF files spell with spaces and the score of an afterthought. In the
/// tokenizer.json they are spelt with the space mark, and their merges come first (score 0, and all others are below).
fn with_marked_spaces<'a>(tokens: &[&'a str], scores: &[f32], types: &[i32]) -> (Vec<Cow<'a, str>>, Vec<f32>) {
    let known: AHashSet<&str> = tokens.iter().copied().collect();
    let mut scores = scores.to_vec();
    let marked = tokens.iter().enumerate().map(|(id, &token)| {
        if types.get(id) != Some(&USER_DEFINED) || token.is_empty() || token.bytes().any(|b| b != b' ') {
            return Cow::Borrowed(token);
        }
        let spelt = SPACE_MARK.repeat(token.len());
        if known.contains(spelt.as_str()) {
            return Cow::Borrowed(token);
        }
        scores[id] = 0.0;
        Cow::Owned(spelt)
    });
    (marked.collect(), scores)
}

/// Tokens matched whole in raw text, as spelt: one spelt with SentencePiece's space mark where the text holds that mark.
fn added_tokens(tokens: &[&str], types: &[i32]) -> Vec<AddedToken> {
    tokens
        .iter()
        .zip(types)
        .filter(|(token, &kind)| !token.is_empty() && matches!(kind, CONTROL | UNKNOWN | USER_DEFINED))
        .map(|(&token, &kind)| AddedToken::from(token, kind != USER_DEFINED).normalized(false))
        .collect()
}

/// Whether a decoded text loses the space that encoding put before it. Decoders that do something else to text are refused.
fn decoder_strips_space(decoder: &Value) -> Outcome<bool> {
    let parts = match decoder["type"].as_str() {
        Some("Sequence") => decoder["decoders"].as_array().map_or(&[][..], Vec::as_slice),
        Some(_) => std::slice::from_ref(decoder),
        None => &[],
    };
    let mut strips = false;
    for part in parts {
        match part["type"].as_str().unwrap_or_default() {
            "ByteLevel" | "Replace" | "ByteFallback" | "Fuse" => {}
            "Strip" => strips = true,
            "Metaspace" => strips |= part["prepend_scheme"] != "never",
            other => {
                return Err(Fault::Unsupported(format!(
                    "tokenizer.json has decoder {other}; known are ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip"
                )))
            }
        }
    }
    Ok(strips)
}

fn json_text_form(normalizer: &Value) -> Option<TextForm> {
    let is_replace = |v: &Value| v["type"] == "Replace" && v["pattern"]["String"] == " " && v["content"] == SPACE_MARK;
    if normalizer.is_null() {
        return Some(TextForm::AsIs);
    }
    match normalizer["type"].as_str()? {
        "NFC" => Some(TextForm::Nfc),
        "Replace" if is_replace(normalizer) => Some(TextForm::SpaceMarks { prefix: false }),
        "Sequence" => {
            let list = normalizer["normalizers"].as_array()?;
            match list.as_slice() {
                [] => Some(TextForm::AsIs),
                [first, second]
                    if first["type"] == "Prepend" && first["prepend"] == SPACE_MARK && is_replace(second) =>
                {
                    Some(TextForm::SpaceMarks { prefix: true })
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn json_table(
    loaded: &tokenizers::Tokenizer,
    bpe: &BPE,
    byte_chars: &ByteChars,
    byte_level: bool,
) -> Outcome<ByteTable> {
    let vocab = loaded.get_vocab(true);
    let count = vocab.values().max().map_or(0, |&id| id as usize + 1);
    if count == 0 || count > TOKEN_COUNT_MAX {
        return Err(Fault::Input(format!(
            "tokenizer.json has ids up to {count}, wanted 1 to {TOKEN_COUNT_MAX}"
        )));
    }
    let mut texts: Vec<Option<String>> = vec![None; count];
    for (token, id) in vocab {
        texts[id as usize] = Some(token);
    }
    let added = loaded.get_added_tokens_decoder();
    let mut table = ByteTable::default();
    for (id, text) in texts.into_iter().enumerate() {
        let Some(text) = text else {
            table.push(&[], 0);
            continue;
        };
        if let Some(token) = added.get(&(id as u32)) {
            let text = if byte_level {
                token.content.clone()
            } else {
                token.content.replace(SPACE_MARK, " ")
            };
            table.push(
                text.as_bytes(),
                FLAG_KNOWN | FLAG_ADDED | if token.special { FLAG_SPECIAL } else { 0 },
            );
        } else if byte_level {
            table.push(&byte_chars.decode(&text), FLAG_KNOWN);
        } else if let Some(byte) = byte_token(&text).filter(|_| bpe.byte_fallback) {
            table.push(&[byte], FLAG_KNOWN);
        } else {
            table.push(text.replace(SPACE_MARK, " ").as_bytes(), FLAG_KNOWN);
        }
    }
    Ok(table)
}

/// The ids that the post-processor puts around a text, found by encoding one.
fn json_affixes(loaded: &tokenizers::Tokenizer) -> Outcome<(Vec<u32>, Vec<u32>)> {
    let ids = |special: bool| -> Outcome<Vec<u32>> {
        let encoding = loaded
            .encode_fast("a", special)
            .map_err(|e| Fault::Input(format!("tokenizer.json: {e}")))?;
        Ok(encoding.get_ids().to_vec())
    };
    let (bare, full) = (ids(false)?, ids(true)?);
    if bare.is_empty() {
        return Ok((full, Vec::new()));
    }
    let at = full.windows(bare.len()).position(|w| w == bare).unwrap_or(0);
    Ok((full[..at].to_vec(), full[(at + bare.len()).min(full.len())..].to_vec()))
}
