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

/// How one family cuts text before its merges.
pub struct Family {
    pub stages: Vec<Stage>,
    pub nfc: bool,
    pub ignore_merges: bool,
}

/// By the GGUF name of the pre-tokenizer; the facts come from the families' tokenizer.json files.
pub fn family(name: &str) -> Option<Family> {
    let (patterns, nfc, ignore_merges): (&[&str], bool, bool) = match name {
        "gpt-2" | "gpt2" | "default" | "" | "phi-2" => (&[GPT2], false, false),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => (&[DIGIT, GPT2], false, false),
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "lfm2" => (&[LLAMA3], false, true),
        "dbrx" | "smaug-bpe" => (&[LLAMA3], false, false),
        "qwen2" | "deepseek-r1-qwen" => (&[QWEN2], true, false),
        "qwen35" => (&[QWEN35], true, false),
        _ => return None,
    };
    let stages = patterns.iter().map(|p| Stage::new(p)).collect::<Option<Vec<_>>>()?;
    Some(Family {
        stages,
        nfc,
        ignore_merges,
    })
}

pub const FAMILY_NAMES: &str = "qwen35, qwen2, llama-bpe, smollm, gpt-2";

/// One pass that cuts each piece at the matches of a pattern; what lies between matches stays a piece.
pub struct Stage {
    regex: Regex,
    has_spaces_tail: bool,
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
        })
    }

    fn cut(&self, text: &str, offset: usize, pieces: &mut Vec<Range<usize>>) {
        let mut at = 0;
        while at < text.len() {
            let Some(found) = self.regex.search(&Input::new(text).range(at..)) else {
                pieces.push(offset + at..offset + text.len());
                return;
            };
            let mut end = found.end();
            if self.has_spaces_tail && found.pattern().as_usize() == 1 && end < text.len() {
                let last = text[found.start()..end].chars().next_back().map_or(0, char::len_utf8);
                if end - last > found.start() {
                    end -= last;
                }
            }
            if found.start() > at {
                pieces.push(offset + at..offset + found.start());
            }
            pieces.push(offset + found.start()..offset + end);
            at = end;
        }
    }
}

/// The pieces of a text, in order; they cover it.
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
            if value.get("behavior")?.as_str()? != "Isolated" || flag("invert")? {
                return None;
            }
            stages.push(Stage::new(pattern.get("Regex")?.as_str()?)?);
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
