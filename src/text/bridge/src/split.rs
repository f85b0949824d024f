//! Pre-tokenizers as regular expressions that run in linear time.
//!
//! The published patterns end in `|\s+(?!\S)|\s+`: a run of spaces leaves its last one to the word
//! after it. That is the only lookahead they use, so it is done by hand: `\s+` is matched as a
//! pattern of its own, and its match loses its last character if a visible one follows.

use regex_automata::meta::Regex;
use regex_automata::Input;
use serde_json::Value;
use std::ops::Range;

const SPACES_TAIL: &str = r"|\s+(?!\S)|\s+";

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const DIGITS_3: &str = r"\p{N}{1,3}";
// Words end where a capital follows a small letter: GPT-4o's pattern (contractions stay with their word), Mistral's (none).
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const CJK: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const DEEPSEEK_CODER: [&str; 5] = [
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+",
    DIGIT,
];
// Digits are cut after the bytes became characters, so that parts of characters are digits too: no linear form.
const FALCON3: &str = r#"{"type":"Sequence","pretokenizers":[{"type":"Punctuation","behavior":"Contiguous"},
    {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},{"type":"Digits","individual_digits":true}]}"#;

/// How one family cuts text before its merges.
pub struct Family {
    pub cuts: Cuts,
    pub nfc: bool,
    pub ignore_merges: bool,
    pub merges_from_ranks: bool, // a file without merges means those that the order of the vocabulary gives
}

pub enum Cuts {
    Stages(Vec<Stage>),
    Json(&'static str), // a pre_tokenizer of tokenizer.json, with its own mapping of bytes
}

/// By the GGUF name of the pre-tokenizer; the facts come from the families' tokenizer.json files.
pub fn family(name: &str) -> Option<Family> {
    let (patterns, nfc, ignore_merges): (&[&str], bool, bool) = match name {
        "gpt-2" | "gpt2" | "default" | "" | "phi-2" | "granite-docling" => (&[GPT2], false, false),
        "mpt" | "olmo" => (&[GPT2], true, false), // GPT-NeoX's, in Mamba models too
        "smollm" | "starcoder" | "refact" | "codeshell" => (&[DIGIT, GPT2], false, false),
        "command-r" => (&[DIGIT, GPT2], true, false),
        "llama-bpe" | "llama3" | "llama-v3" | "falcon-h1" | "pixtral" | "lfm2" => (&[LLAMA3], false, true),
        "dbrx" | "smaug-bpe" => (&[LLAMA3], false, false),
        "qwen2" | "deepseek-r1-qwen" => (&[QWEN2], true, false),
        "qwen35" => (&[QWEN35], true, false),
        "gpt-4o" | "llama4" => (&[GPT4O], false, true),
        "tekken" => (&[TEKKEN], false, true),
        "kimi-k2" => (&[KIMI], false, true),
        "deepseek-v3" => (&[DIGITS_3, CJK, DEEPSEEK3], false, false),
        "deepseek-coder" => (&DEEPSEEK_CODER, false, false),
        "falcon3" => (&[], false, false),
        _ => return None,
    };
    let cuts = if name == "falcon3" {
        Cuts::Json(FALCON3)
    } else {
        Cuts::Stages(patterns.iter().map(|p| Stage::new(p)).collect::<Option<Vec<_>>>()?)
    };
    Some(Family {
        cuts,
        nfc,
        ignore_merges,
        merges_from_ranks: name == "kimi-k2",
    })
}

pub const FAMILY_NAMES: &str =
    "qwen35, qwen2, llama-bpe, lfm2, dbrx, tekken, smollm, refact, starcoder, gpt-2, mpt, kimi-k2, \
                                gpt-4o, falcon-h1, falcon3, command-r, deepseek-v3, deepseek-coder";

/// One pass that cuts each piece at the matches of a pattern; what lies between matches stays a piece or is left out.
pub struct Stage {
    regex: Regex,
    has_spaces_tail: bool,
    keeps_gaps: bool,
}

impl Stage {
    /// None if the pattern needs more than a linear-time engine can do, or can match nothing.
    pub fn new(pattern: &str) -> Option<Stage> {
        let (rest, has_spaces_tail) = match pattern.strip_suffix(SPACES_TAIL) {
            Some(rest) => (rest, true),
            None => (pattern, false),
        };
        let hir = regex_syntax::parse(rest).ok()?;
        if hir.properties().minimum_len().unwrap_or(0) == 0 {
            return None;
        }
        let regex = if has_spaces_tail {
            Regex::new_many(&[rest, r"\s+"])
        } else {
            Regex::new_many(&[rest])
        };
        Some(Stage {
            regex: regex.ok()?,
            has_spaces_tail,
            keeps_gaps: true,
        })
    }

    fn cut(&self, text: &str, offset: usize, pieces: &mut Vec<Range<usize>>) {
        let mut at = 0;
        while at < text.len() {
            let Some(found) = self.regex.search(&Input::new(text).range(at..)) else {
                if self.keeps_gaps {
                    pieces.push(offset + at..offset + text.len());
                }
                return;
            };
            let mut end = found.end();
            if self.has_spaces_tail && found.pattern().as_usize() == 1 && end < text.len() {
                let last = text[found.start()..end].chars().next_back().map_or(0, char::len_utf8);
                if end - last > found.start() {
                    end -= last;
                }
            }
            if found.start() > at && self.keeps_gaps {
                pieces.push(offset + at..offset + found.start());
            }
            pieces.push(offset + found.start()..offset + end);
            at = end;
        }
    }
}

/// The pieces of a text, in order; they cover it, but for gaps that a stage leaves out.
pub fn pieces(stages: &[Stage], text: &str) -> Vec<Range<usize>> {
    let mut pieces = vec![0..text.len()];
    for stage in stages {
        let mut next = Vec::with_capacity(pieces.len() + text.len() / 4);
        for piece in pieces {
            stage.cut(&text[piece.clone()], piece.start, &mut next);
        }
        pieces = next;
    }
    pieces
}

/// A tokenizer.json's pre_tokenizer as stages, and whether bytes are mapped to characters after them.
/// None: it needs the general path.
pub fn from_json(value: &Value, spaces_are_replaced: bool) -> Option<(Vec<Stage>, bool)> {
    let mut stages = Vec::new();
    let mut byte_level = false;
    add_json(value, spaces_are_replaced, &mut stages, &mut byte_level)?;
    Some((stages, byte_level))
}

fn add_json(value: &Value, spaces_are_replaced: bool, stages: &mut Vec<Stage>, byte_level: &mut bool) -> Option<()> {
    if value.is_null() {
        return Some(());
    }
    if *byte_level {
        return None; // nothing may follow the mapping to characters
    }
    let flag = |name: &str| value.get(name).and_then(Value::as_bool);
    match value.get("type")?.as_str()? {
        "Sequence" => {
            for inner in value.get("pretokenizers")?.as_array()? {
                add_json(inner, spaces_are_replaced, stages, byte_level)?;
            }
        }
        "Split" => {
            let pattern = value.get("pattern")?;
            if spaces_are_replaced && pattern.get("String").and_then(Value::as_str) == Some(" ") {
                return Some(()); // no space is left to split at
            }
            let mut stage = Stage::new(pattern.get("Regex")?.as_str()?)?;
            match (value.get("behavior")?.as_str()?, flag("invert")?) {
                ("Isolated", _) => {} // the pieces are the same whichever of them is called the match
                ("Removed", true) => stage.keeps_gaps = false,
                _ => return None,
            }
            stages.push(stage);
        }
        "Digits" => stages.push(Stage::new(if flag("individual_digits")? { DIGIT } else { r"\p{N}+" })?),
        "ByteLevel" => {
            if flag("add_prefix_space")? {
                return None;
            }
            if flag("use_regex").unwrap_or(true) {
                stages.push(Stage::new(GPT2)?);
            }
            *byte_level = true;
        }
        _ => return None,
    }
    Some(())
}
