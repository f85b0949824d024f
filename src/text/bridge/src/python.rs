//! Values as Python writes them: str() and repr() for printed expressions, json.dumps for `tojson`.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

const PAID_BYTES: usize = 4096;
const DEPTH_MAX: usize = 256; // deeper values are a template's mistake: request JSON is at most 128 deep

/// repr(float): the shortest digits that read back the same, in exponent form below 1e-4 and from 1e16.
fn float_repr(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    let shortest = format!("{x:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x == 0.0 || (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Whether repr(str) leaves the character as it is: not a control, format or private one, nor a space but ' '.
fn is_printable(c: char) -> bool {
    let is_format = matches!(c as u32, 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e | 0x200b..=0x200f | 0x202a..=0x202e
        | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb | 0xe000..=0xf8ff | 0xfdd0..=0xfdef | 0xfff0..=0xfff8 | 0xe0000..=0xe0fff | 0xf0000..);
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_format)
}

/// repr(str).
fn string_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => out.push_str(&match c as u32 {
                n @ 0..=0xff => format!("\\x{n:02x}"),
                n @ 0x100..=0xffff => format!("\\u{n:04x}"),
                n => format!("\\U{n:08x}"),
            }),
        }
    }
    out.push(quote);
}

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, "value is nested too deeply")
}

/// A number, bool or None as text; None for the other kinds.
fn scalar(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::None => Some("None".into()),
        ValueKind::Bool => Some(if value.is_true() { "True" } else { "False" }.into()),
        ValueKind::Number if !value.is_integer() => {
            Some(f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float_repr))
        }
        ValueKind::Number => Some(value.to_string()),
        _ => None,
    }
}

/// Text that is paid for while it grows: a small value may be a very long text, holding one string many times.
struct Paid<'a> {
    state: &'a State<'a, 'a>,
    paid: usize,
}

impl Paid<'_> {
    fn up_to(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes >= self.paid + PAID_BYTES {
            self.state.consume_fuel((bytes - self.paid) as u64 / 64)?;
            self.paid = bytes;
        }
        Ok(())
    }
}

fn repr(value: &Value, depth: usize, out: &mut String, paid: &mut Paid) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(too_deep());
    }
    paid.up_to(out.len())?;
    if let Some(text) = scalar(value) {
        out.push_str(&text);
        return Ok(());
    }
    match value.kind() {
        ValueKind::String => string_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                repr(&item, depth + 1, out, paid)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                repr(&key, depth + 1, out, paid)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, depth + 1, out, paid)?;
            }
            out.push('}');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// str(value), as an expression prints.
pub fn str_of(state: &State, value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_string()),
        _ => {
            let mut out = String::new();
            repr(value, 0, &mut out, &mut Paid { state, paid: 0 })?;
            Ok(out)
        }
    }
}

/// The bytes of str(value), paid for.
pub fn written(state: &State, value: &Value) -> Result<usize, Error> {
    str_of(state, value).map(|text| text.len())
}

struct Json<'a> {
    paid: Paid<'a>,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
    out: String,
}

impl Json<'_> {
    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 => self.out.push_str(&format!("\\u{:04x}", c as u32)),
                c if self.ensure_ascii && !matches!(c, ' '..='~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        self.paid.up_to(self.out.len())?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let text = scalar(value).unwrap_or_default();
                self.out.push_str(match text.as_str() {
                    "nan" => "NaN",
                    "inf" => "Infinity",
                    "-inf" => "-Infinity",
                    other => other,
                });
            }
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let mut is_empty = true;
                self.out.push('[');
                for item in value.try_iter()? {
                    if !is_empty {
                        self.out.push_str(&self.item_separator.clone());
                    }
                    is_empty = false;
                    self.line(depth + 1);
                    self.value(&item, depth + 1)?;
                }
                if !is_empty {
                    self.line(depth);
                }
                self.out.push(']');
            }
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("a value of type {kind} is not JSON serializable"),
                ))
            }
        }
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        for (i, key) in keys.iter().enumerate() {
            if i > 0 {
                self.out.push_str(&self.item_separator.clone());
            }
            self.line(depth + 1);
            match key.as_str() {
                Some(text) => self.string(text),
                None => {
                    let text = match key.kind() {
                        ValueKind::None => "null".into(),
                        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.into(),
                        _ => scalar(key).unwrap_or_default(),
                    };
                    self.string(&text);
                }
            }
            self.out.push_str(&self.key_separator.clone());
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        if !keys.is_empty() {
            self.line(depth);
        }
        self.out.push('}');
        Ok(())
    }
}

/// `tojson`, equal to json.dumps(value, ensure_ascii=False, ...) with the arguments that transformers gives it.
pub fn to_json(state: &State, value: &Value, positional: &[Value], kwargs: &Kwargs) -> Result<String, Error> {
    let argument = |i: usize, name: &str| -> Result<Option<Value>, Error> {
        Ok(match positional.get(i) {
            Some(v) => Some(v.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        }
        .filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = match argument(1, "indent")? {
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(usize::try_from(v).unwrap_or(0).min(64)),
        }),
        None => None,
    };
    let separators: Option<Vec<Value>> = match argument(2, "separators")? {
        Some(v) => Some(v.try_iter()?.collect()),
        None => None,
    };
    let separator = |i: usize, default: &str| {
        separators
            .as_ref()
            .and_then(|s| s.get(i))
            .and_then(|v| v.as_str().map(str::to_string))
            .unwrap_or_else(|| default.to_string())
    };
    let item_default = if indent.is_some() { "," } else { ", " };
    let sort_keys = argument(3, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let mut json = Json {
        paid: Paid { state, paid: 0 },
        item_separator: separator(0, item_default),
        key_separator: separator(1, ": "),
        indent,
        ensure_ascii,
        sort_keys,
        out: String::new(),
    };
    json.value(value, 0)?;
    state.consume_fuel(json.out.len() as u64 / 64)?;
    Ok(json.out)
}
