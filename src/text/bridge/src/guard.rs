//! What keeps a hostile template in bounds beyond minijinja's own steps: values that hold themselves are refused, and text
//! is paid for before it grows.

use crate::{python, strings};
use minijinja::machinery::{tokenize, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

const STORED_DEPTH_MAX: usize = 64;
const NODES_PER_STEP: u64 = 64;
pub const LIST_SLOT_BYTES: usize = 32; // what minijinja charges for an item of a list
const WIDTH_DIGITS_MAX: usize = 6; // of a width or precision in a format

/// Names that guarded source calls.
const STORE: &str = "cairn_stored";
const CHANGED: &str = "cairn_changed";

/// Filters of minijinja that write a list or a map as text (all items, however often they share one long string).
const TEXT_FILTERS: [&str; 9] = [
    "capitalize",
    "e",
    "escape",
    "format",
    "join",
    "lower",
    "title",
    "trim",
    "upper",
];

/// A namespace or a loop (by changed()) could be made to hold itself: a cycle that reference counts never free, and
/// that printing follows without end. `{% set ns.a = x %}` and `loop.changed(x)` are the only ways to change an object
/// after it was made, so the source is rewritten to pass x through a check.
pub fn guarded_source(source: String, syntax: SyntaxConfig) -> String {
    let Some(edits) = edits_of(&source, syntax) else {
        return source; // the compiler says what is wrong with it
    };
    let mut out = String::with_capacity(source.len() + 32 * edits.len());
    let mut done = 0;
    for (begin, end, text) in edits {
        out.push_str(&source[done..begin]);
        out.push_str(&text);
        done = end;
    }
    out.push_str(&source[done..]);
    out
}

/// (begin, end, what stands there instead), ascending.
fn edits_of(source: &str, syntax: SyntaxConfig) -> Option<Vec<(usize, usize, String)>> {
    let mut edits = Vec::new();
    let mut tokens = Vec::new();
    for token in tokenize(source, false, syntax) {
        let (token, span) = token.ok()?;
        tokens.push((token, span.start_offset as usize, span.end_offset as usize));
    }
    for (i, (token, _, _)) in tokens.iter().enumerate() {
        match token {
            Token::BlockStart if matches!(tokens.get(i + 1), Some((Token::Ident("set"), _, _))) => {
                let end = i + tokens[i..].iter().position(|t| matches!(t.0, Token::BlockEnd))?;
                let tag = &tokens[i + 2..end];
                let Some(assign) = tag.iter().position(|t| matches!(t.0, Token::Assign)) else {
                    continue; // a set block: its value is a string
                };
                if tag[..assign].iter().any(|t| matches!(t.0, Token::Dot)) && assign + 1 < tag.len() {
                    edits.push((tag[assign].2, tag[assign].2, format!(" {STORE}((")));
                    edits.push((tag[tag.len() - 1].2, tag[tag.len() - 1].2, "))".to_string()));
                }
            }
            Token::Ident("changed")
                if i > 0
                    && matches!(tokens[i - 1].0, Token::Dot)
                    && matches!(tokens.get(i + 1), Some((Token::ParenOpen, _, _))) =>
            {
                edits.push((tokens[i].1, tokens[i].2, CHANGED.to_string()));
            }
            _ => {}
        }
    }
    edits.sort_by_key(|edit| edit.0);
    Some(edits)
}

pub fn set_up(environment: &mut Environment<'static>) {
    environment.add_function(STORE, |state: &State, value: Value| -> Result<Value, Error> {
        check_stored(state, &value)?;
        Ok(value)
    });
    environment.set_unknown_method_callback(method);
    for name in TEXT_FILTERS {
        let Some(original) = builtin(name) else { continue };
        environment.add_filter(
            name,
            move |state: &mut State, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
                let args: Vec<Value> = args.0.into_iter().map(ValueOrKwargs::into_value).collect();
                let mut sizes = Vec::with_capacity(args.len());
                for value in args.iter() {
                    sizes.push(text_size(state, value)?);
                }
                if name == "format" {
                    charge_format(
                        state,
                        args.first().and_then(Value::as_str).unwrap_or_default(),
                        "%",
                        &sizes,
                    )?;
                }
                original.call(state, &args)
            },
        );
    }
    strings::set_up(environment);
    environment.add_filter("pprint", |state: &State, value: Value| python::str_of(state, &value));
}

/// minijinja's own filter.
fn builtin(name: &str) -> Option<Value> {
    use minijinja::filters as f;
    Some(match name {
        "capitalize" => Value::from_function(f::capitalize),
        "e" | "escape" => Value::from_function(f::escape),
        "format" => Value::from_function(f::format),
        "join" => Value::from_function(f::join),
        "lower" => Value::from_function(f::lower),
        "title" => Value::from_function(f::title),
        "trim" => Value::from_function(f::trim),
        "upper" => Value::from_function(f::upper),
        _ => return None,
    })
}

fn check_stored(state: &State, value: &Value) -> Result<(), Error> {
    let mut nodes = 0;
    check_node(state, value, 0, &mut nodes)
}

fn check_node(state: &State, value: &Value, depth: usize, nodes: &mut u64) -> Result<(), Error> {
    let Some(object) = value.as_object() else {
        return Ok(());
    };
    let refused = |what: &str| Err(Error::new(ErrorKind::InvalidOperation, what.to_string()));
    let name = object.type_name();
    if name.ends_with("::Namespace") || name.ends_with("::Loop") {
        return refused("a namespace or loop cannot be stored in another");
    }
    if depth == STORED_DEPTH_MAX {
        return refused("value is nested too deeply");
    }
    if let Some(pairs) = object.try_iter_pairs() {
        let is_map = value.kind() == ValueKind::Map;
        for (key, item) in pairs {
            *nodes += 1;
            if *nodes % NODES_PER_STEP == 0 {
                state.consume_fuel(1)?;
            }
            if is_map {
                check_node(state, &key, depth + 1, nodes)?;
            }
            check_node(state, &item, depth + 1, nodes)?;
        }
    }
    Ok(())
}

/// The bytes of a value as text. Strings were paid for when they were made; lists and maps are paid for here, as they
/// may hold one long string many times.
fn text_size(state: &State, value: &Value) -> Result<usize, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.len());
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => Ok(python::written(state, value)?),
        _ => Ok(64),
    }
}

pub fn charge_bytes(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(bytes as u64 / 64)
}

/// A format repeats its arguments as often as it has fields, and pads each to its width.
fn charge_format(state: &State, format: &str, field: &str, sizes: &[usize]) -> Result<(), Error> {
    let mut widths = 0usize;
    let mut digits = 0usize;
    let mut number = 0usize;
    for byte in format.bytes() {
        if byte.is_ascii_digit() {
            digits += 1;
            if digits > WIDTH_DIGITS_MAX {
                return Err(Error::new(ErrorKind::InvalidOperation, "format: a number is too large"));
            }
            number = number * 10 + usize::from(byte - b'0');
        } else if digits > 0 {
            widths = widths.saturating_add(number);
            (digits, number) = (0, 0);
        }
    }
    let longest = sizes.iter().copied().max().unwrap_or(0);
    let fields = format.matches(field).count();
    charge_bytes(state, widths.saturating_add(fields.saturating_mul(longest)))
}

/// Python's methods, paid for before they make more text than they were given.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (name, value.as_str()) {
        (CHANGED, _) => {
            for arg in args {
                check_stored(state, arg)?;
            }
            return value.call_method(state, "changed", args);
        }
        ("format", Some(format)) => {
            let mut sizes = Vec::with_capacity(args.len());
            for arg in args {
                sizes.push(text_size(state, arg)?);
            }
            charge_format(state, format, "{", &sizes)?;
        }
        ("split", Some(text)) => {
            let pieces = match args.first().and_then(Value::as_str) {
                Some("") | None => text.split_whitespace().count(),
                Some(separator) => text.matches(separator).count(),
            };
            charge_bytes(state, pieces.saturating_mul(LIST_SLOT_BYTES))?;
        }
        ("join", Some(_)) => {
            for arg in args {
                text_size(state, arg)?;
            }
        }
        _ => {}
    }
    if let Some(done) = value.as_str().and_then(|text| strings::method(state, text, name, args)) {
        return done;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}
