//! Python's string methods and jinja2's text filters that minijinja has not, or has otherwise. Text that grows is paid for first.

use crate::{guard, python};
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

const TRUNCATE_LEEWAY: usize = 5;

pub fn set_up(environment: &mut Environment<'static>) {
    environment.add_filter("indent", indent);
    environment.add_filter("replace", replace);
    environment.add_filter("int", int);
    environment.add_filter("center", |state: &State, value: Value, width: Option<usize>| {
        pad(
            state,
            &python::str_of(state, &value)?,
            width.unwrap_or(80),
            ' ',
            Side::Both,
        )
    });
    environment.add_filter("wordcount", |state: &State, value: Value| -> Result<usize, Error> {
        let text = python::str_of(state, &value)?;
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        Ok(words.filter(|word| !word.is_empty()).count())
    });
    environment.add_filter("truncate", truncate);
}

/// The methods of str that pycompat lacks or does otherwise; None: ask it.
pub fn method(state: &State, text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let word = |i: usize| args.get(i).and_then(Value::as_str);
    let width = || args.first().and_then(|v| usize::try_from(v.clone()).ok());
    let fill = || word(1).and_then(|s| s.chars().next()).unwrap_or(' ');
    let padded = |side: Side| pad(state, text, width()?, fill(), side).map(Value::from).into();
    match name {
        "splitlines" => Some(lines(state, text, args.first().is_some_and(Value::is_true))),
        "removeprefix" => Some(Ok(text.strip_prefix(word(0)?).unwrap_or(text).into())),
        "removesuffix" => Some(Ok(text.strip_suffix(word(0)?).unwrap_or(text).into())),
        "partition" => Some(Ok(three(word(0)?, text, text.split_once(word(0)?), false))),
        "rpartition" => Some(Ok(three(word(0)?, text, text.rsplit_once(word(0)?), true))),
        "swapcase" => Some(Ok(swapped(text).into())),
        "rsplit" => rsplit(state, text, args),
        "zfill" => Some(zfill(state, text, width()?)),
        "ljust" => padded(Side::Right),
        "rjust" => padded(Side::Left),
        "center" => padded(Side::Both),
        _ => None,
    }
}

/// Python's str.splitlines: more ends than "\n", and no empty line after the last.
fn split_lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let mut out = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        ) {
            continue;
        }
        let mut next = at + c.len_utf8();
        if c == '\r' && chars.peek().is_some_and(|&(_, c)| c == '\n') {
            chars.next();
            next += 1;
        }
        out.push(&text[start..if keeps_ends { next } else { at }]);
        start = next;
    }
    if start < text.len() {
        out.push(&text[start..]);
    }
    out
}

fn lines(state: &State, text: &str, keeps_ends: bool) -> Result<Value, Error> {
    let list = split_lines(text, keeps_ends);
    guard::charge_bytes(state, list.len().saturating_mul(guard::LIST_SLOT_BYTES))?;
    Ok(list.into_iter().map(Value::from).collect())
}

fn three(separator: &str, text: &str, cut: Option<(&str, &str)>, from_right: bool) -> Value {
    let parts = match cut {
        Some((left, right)) => [left, separator, right],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    parts.into_iter().map(Value::from).collect()
}

fn swapped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_uppercase() {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
    }
    out
}

/// With a separator. None without one: then the cuts are at white space, which pycompat's split does as well unless it is limited.
fn rsplit(state: &State, text: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let limit = args
        .get(1)
        .and_then(|v| i64::try_from(v.clone()).ok())
        .and_then(|n| usize::try_from(n).ok());
    let mut parts: Vec<&str> = match (args.first().and_then(Value::as_str), limit) {
        (Some(""), _) => return None,
        (Some(separator), Some(limit)) => text.rsplitn(limit.saturating_add(1), separator).collect(),
        (Some(separator), None) => text.rsplit(separator).collect(),
        (None, Some(_)) => return None,
        (None, None) => text.split_whitespace().rev().collect(),
    };
    parts.reverse();
    Some(
        guard::charge_bytes(state, parts.len().saturating_mul(guard::LIST_SLOT_BYTES))
            .map(|()| parts.into_iter().map(Value::from).collect()),
    )
}

enum Side {
    Left,
    Right,
    Both,
}

fn pad(state: &State, text: &str, width: usize, fill: char, side: Side) -> Result<String, Error> {
    let missing = width.saturating_sub(text.chars().count());
    guard::charge_bytes(state, missing.saturating_mul(fill.len_utf8()))?;
    let left = match side {
        Side::Left => missing,
        Side::Right => 0,
        Side::Both => missing / 2 + (missing & width & 1), // as CPython rounds
    };
    let run = |count: usize| std::iter::repeat_n(fill, count);
    Ok(run(left).chain(text.chars()).chain(run(missing - left)).collect())
}

fn zfill(state: &State, text: &str, width: usize) -> Result<Value, Error> {
    match text.chars().next().filter(|c| matches!(c, '+' | '-')) {
        Some(sign) => {
            let digits = pad(state, &text[1..], width.saturating_sub(1), '0', Side::Left)?;
            Ok(format!("{sign}{digits}").into())
        }
        None => pad(state, text, width, '0', Side::Left).map(Value::from),
    }
}

fn argument(i: usize, name: &str, args: &[Value], kwargs: &Kwargs) -> Result<Option<Value>, Error> {
    match args.get(i) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get::<Option<Value>>(name),
    }
}

fn indent(state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let width = argument(0, "width", &args, &kwargs)?;
    let first = argument(1, "first", &args, &kwargs)?.is_some_and(|v| v.is_true());
    let blank = argument(2, "blank", &args, &kwargs)?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let text = python::str_of(state, &value)? + "\n"; // so that a line end at the end stays one
    let width = match width {
        Some(v) if v.as_str().is_some() => v.as_str().unwrap_or_default().to_string(),
        Some(v) => {
            let count = usize::try_from(v)?;
            guard::charge_bytes(state, count)?;
            " ".repeat(count)
        }
        None => " ".repeat(4),
    };
    let list = split_lines(&text, false);
    guard::charge_bytes(
        state,
        list.len().saturating_mul(width.len() + 1).saturating_add(text.len()),
    )?;
    let mut out = String::with_capacity(text.len());
    for (i, line) in list.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if (i == 0 && first) || (i > 0 && (blank || !line.is_empty())) {
            out.push_str(&width);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn replace(state: &State, value: Value, from: Value, to: Value, count: Option<Value>) -> Result<String, Error> {
    let text = python::str_of(state, &value)?;
    let (from, to) = (python::str_of(state, &from)?, python::str_of(state, &to)?);
    let count = count.filter(|v| !v.is_none()).map(i64::try_from).transpose()?;
    let found = text.matches(from.as_str()).count();
    guard::charge_bytes(state, found.saturating_mul(to.len()).saturating_add(text.len()))?;
    Ok(match count.and_then(|n| usize::try_from(n).ok()) {
        Some(count) => text.replacen(&from, &to, count),
        None => text.replace(&from, &to),
    })
}

/// What is no number is the default.
fn int(value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = argument(0, "default", &args, &kwargs)?.unwrap_or_else(|| Value::from(0));
    let base = argument(1, "base", &args, &kwargs)?
        .map(u32::try_from)
        .transpose()?
        .unwrap_or(10);
    kwargs.assert_all_used()?;
    if !(2..=36).contains(&base) {
        return Err(Error::new(ErrorKind::InvalidOperation, "int: base is not from 2 to 36"));
    }
    Ok(match value.kind() {
        ValueKind::Bool => i64::from(value.is_true()).into(),
        ValueKind::Number if value.is_integer() => value,
        ValueKind::Number => match f64::try_from(value) {
            Ok(x) if x.is_finite() => Value::from(x as i128),
            _ => default,
        },
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default().trim().replace('_', "");
            let whole = i128::from_str_radix(&text, base).ok();
            let part = || text.parse::<f64>().ok().filter(|x| x.is_finite()).map(|x| x as i128);
            whole.or_else(part).map_or(default, Value::from)
        }
        _ => default,
    })
}

fn truncate(state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let length = argument(0, "length", &args, &kwargs)?
        .map(usize::try_from)
        .transpose()?
        .unwrap_or(255);
    let kills_words = argument(1, "killwords", &args, &kwargs)?.is_some_and(|v| v.is_true());
    let end = argument(2, "end", &args, &kwargs)?.map_or(Ok("...".to_string()), |v| python::str_of(state, &v))?;
    let leeway = argument(3, "leeway", &args, &kwargs)?
        .filter(|v| !v.is_none())
        .map(usize::try_from)
        .transpose()?;
    kwargs.assert_all_used()?;
    let text = python::str_of(state, &value)?;
    if text.chars().count() <= length.saturating_add(leeway.unwrap_or(TRUNCATE_LEEWAY)) {
        return Ok(text);
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept = if kills_words {
        kept.as_str()
    } else {
        kept.rsplit_once(' ').map_or(kept.as_str(), |(left, _)| left)
    };
    Ok(format!("{kept}{end}"))
}
