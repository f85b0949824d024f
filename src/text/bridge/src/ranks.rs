//! A tiktoken.model: one token a line, its bytes in base64 and its rank. What else the tokenizer needs lies in Python code beside
//! it, so only the one that Kimi models bring (TikTokenTokenizer) is known.

use crate::byte_table::ByteChars;
use crate::tokenizer::{Tokenizer, CONTROL, NORMAL, TOKEN_COUNT_MAX, USER_DEFINED};
use crate::{Fault, Outcome};
use serde_json::Value;

const TOKENIZER_CLASS: &str = "TikTokenTokenizer";
const PRE_TOKENIZER: &str = "kimi-k2";
const RESERVED_COUNT: usize = 256; // ids after the last rank: named by the config, or reserved

pub fn tokenizer(ranks: &str, config: &str) -> Outcome<Tokenizer> {
    let config: Value =
        serde_json::from_str(config).map_err(|e| Fault::Input(format!("tokenizer_config.json: {e}")))?;
    let class = config["tokenizer_class"].as_str().unwrap_or_default();
    if class != TOKENIZER_CLASS {
        return Err(Fault::Unsupported(format!(
            "tiktoken.model with tokenizer class '{class}' is not known; known is {TOKENIZER_CLASS}"
        )));
    }
    let mut tokens = plain_tokens(ranks)?;
    let mut types = vec![NORMAL; tokens.len()];
    let named = &config["added_tokens_decoder"];
    for id in tokens.len()..tokens.len() + RESERVED_COUNT {
        let token = &named[id.to_string()];
        let is_special = token["special"].as_bool().unwrap_or(true);
        let text = token["content"].as_str().map(str::to_string);
        tokens.push(text.unwrap_or_else(|| format!("<|reserved_token_{id}|>")));
        types.push(if is_special { CONTROL } else { USER_DEFINED });
    }
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    Tokenizer::byte_level(PRE_TOKENIZER, &tokens, &[], &types)
}

/// By rank, in the characters that stand for bytes.
fn plain_tokens(ranks: &str) -> Outcome<Vec<String>> {
    let chars = ByteChars::new();
    let mut tokens = Vec::new();
    for line in ranks.lines().filter(|line| !line.is_empty()) {
        let broken = || {
            let at = tokens.len() + 1;
            Fault::Input(format!("tiktoken.model: line {at} is not the token of rank {}", at - 1))
        };
        let (token, rank) = line.split_once(' ').ok_or_else(broken)?;
        let bytes = decoded(token).filter(|bytes| !bytes.is_empty()).ok_or_else(broken)?;
        if rank.trim_end().parse() != Ok(tokens.len()) || tokens.len() + RESERVED_COUNT == TOKEN_COUNT_MAX {
            return Err(broken());
        }
        tokens.push(bytes.iter().map(|&b| chars.to_char[b as usize]).collect());
    }
    Ok(tokens)
}

/// Base64.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=');
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.bytes() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(out)
}
