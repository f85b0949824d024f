//! Chat templates with the settings of transformers: trim_blocks, lstrip_blocks, loop controls,
//! Python methods on values, tojson without HTML escapes, raise_exception, strftime_now.

use crate::messages::{self, Ability};
use crate::{guard, python, Fault, Outcome};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use std::collections::BTreeMap;

const NAME: &str = "chat_template";
// Instructions and 64-byte pieces of data. Tiny messages need most: a template of 100 instructions a message, about 1 a byte.
const FUEL_BASE: u64 = 1_000_000;
const FUEL_PER_BYTE: u64 = 2;
const FUEL_MAX: u64 = 10_000_000;
const PROBE_FUEL: u64 = 200_000; // the chats that probe a template are a few lines long
const OUTPUT_BASE: usize = 4 << 20;
const OUTPUT_PER_BYTE: usize = 8;
const STACK_BYTES: usize = 256 << 20; // values may nest as deep as a source unrolls; pages never touched cost nothing
const RECURSION_MAX: usize = 200;
const SOURCE_BYTES_MAX: usize = 1 << 20;
const COMPILE_STACK_BYTES: usize = 8 << 20;
const COMPILE_STACK_BYTES_PER_SOURCE_BYTE: usize = 1024; // a chain of minus signs takes about 300

pub struct Input<'a> {
    pub messages: &'a str,
    pub tools: &'a str,
    pub default_kwargs: &'a str,
    pub kwargs: &'a str,
    pub bos_token: &'a str,
    pub eos_token: &'a str,
    pub add_generation_prompt: bool,
    pub now_unix_s: i64,
    pub steps_max: u64, // 0: as many as the input deserves
}

pub struct Template {
    environment: Environment<'static>,
    ability: Ability,
}

/// Marks an error that the template raised on purpose.
#[derive(Debug)]
struct Raised;
impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("raised by the template")
    }
}
impl std::error::Error for Raised {}

impl Template {
    pub fn compile(source: &str) -> Outcome<Template> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(Fault::Input(format!(
                "chat template has {} bytes, wanted at most {SOURCE_BYTES_MAX}",
                source.len()
            )));
        }
        let mut environment = Environment::new();
        set_up(&mut environment).map_err(|e| Fault::Input(format!("chat template: {e}")))?;
        let syntax = syntax().map_err(|e| Fault::Input(format!("chat template: {e}")))?;
        let source = guard::guarded_source(without_generation_tags(source), syntax);
        add_source(&mut environment, source)?;
        let mut template = Template {
            environment,
            ability: Ability::default(),
        };
        let is_runaway = std::cell::Cell::new(false); // a probe that ran out of steps is the last one
        template.ability = messages::probe(|list| {
            if is_runaway.get() {
                return None;
            }
            let rendered = template.render_values(&serde_json::Value::Null, list, &BTreeMap::new(), PROBE_FUEL, 0);
            is_runaway.set(matches!(rendered, Err(Fault::Exhausted(_))));
            rendered.ok()
        });
        Ok(template)
    }

    pub fn render(&self, input: &Input) -> Outcome<String> {
        let parse = |what: &str, text: &str| -> Outcome<serde_json::Value> {
            if text.is_empty() {
                return Ok(serde_json::Value::Null);
            }
            serde_json::from_str(text).map_err(|e| Fault::Input(format!("{what}: {e}")))
        };
        let mut list = parse("messages", input.messages)?;
        if !list.is_array() {
            return Err(Fault::Input("messages: wanted a JSON array".into()));
        }
        messages::adapt(&mut list, &self.ability);
        let mut tools = parse("tools", input.tools)?;
        if tools.as_array().is_some_and(Vec::is_empty) {
            tools = serde_json::Value::Null;
        }
        let mut variables: BTreeMap<String, Value> = BTreeMap::new();
        variables.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        variables.insert("bos_token".into(), input.bos_token.into());
        variables.insert("eos_token".into(), input.eos_token.into());
        variables.insert("cairn_now_unix_s".into(), input.now_unix_s.into());
        for (what, text) in [
            ("chat template arguments", input.default_kwargs),
            ("chat_template_kwargs", input.kwargs),
        ] {
            match parse(what, text)? {
                serde_json::Value::Null => {}
                serde_json::Value::Object(map) => variables.extend(map.into_iter().map(|(k, v)| (k, value_of(&v)))),
                _ => return Err(Fault::Input(format!("{what}: wanted a JSON object"))),
            }
        }
        let bytes = input.messages.len() + input.tools.len() + input.kwargs.len();
        let fuel = match input.steps_max {
            0 => (FUEL_BASE + FUEL_PER_BYTE * bytes as u64).min(FUEL_MAX),
            steps => steps,
        };
        self.render_values(&tools, &list, &variables, fuel, bytes)
    }

    fn render_values(
        &self,
        tools: &serde_json::Value,
        list: &serde_json::Value,
        variables: &BTreeMap<String, Value>,
        fuel: u64,
        input_bytes: usize,
    ) -> Outcome<String> {
        let mut context: BTreeMap<String, Value> = BTreeMap::new();
        context.insert("documents".into(), Value::from(()));
        context.extend(variables.iter().map(|(k, v)| (k.clone(), v.clone())));
        context.insert("messages".into(), value_of(list));
        context.insert("tools".into(), value_of(tools));
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let limit = OUTPUT_BASE + OUTPUT_PER_BYTE * input_bytes;
        on_large_stack(STACK_BYTES, move || {
            let template = environment
                .get_template(NAME)
                .map_err(|e| Fault::Template(e.to_string()))?;
            let mut out = Bounded {
                bytes: Vec::new(),
                limit,
            };
            let rendered = template
                .render_captured_to(Value::from_pairs(context), &mut out)
                .map(|_| ());
            match rendered {
                Ok(()) => String::from_utf8(out.bytes)
                    .map_err(|_| Fault::Template("chat template: output is not UTF-8".into())),
                Err(e) if e.kind() == ErrorKind::OutOfFuel => Err(Fault::Exhausted(message_of(&e))),
                Err(e) if e.kind() == ErrorKind::WriteFailure => Err(Fault::Exhausted(format!(
                    "chat template writes more than {limit} bytes for these messages"
                ))),
                Err(e) => Err(Fault::Template(message_of(&e))),
            }
        })
    }
}

/// Output of a template, up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl std::io::Write for Bounded {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        if piece.len() > self.limit - self.bytes.len() {
            return Err(std::io::Error::other("the output is too long"));
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Runs body where recursion over a source's or a value's depth has room; pages never touched cost nothing.
fn on_large_stack<T: Send>(bytes: usize, body: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .stack_size(bytes)
            .spawn_scoped(scope, body)
            .map_err(|e| Fault::Template(format!("chat template: no thread: {e}")))?;
        thread
            .join()
            .unwrap_or_else(|_| Err(Fault::Template("chat template: the template engine failed".into())))
    })
}

/// minijinja limits nested parentheses, but calls itself for each operator of a chain (and each elif) too, so a hostile source
/// would overflow an ordinary stack. This one is as large as the source could demand.
fn add_source(environment: &mut Environment<'static>, source: String) -> Outcome<()> {
    let stack = COMPILE_STACK_BYTES + source.len() * COMPILE_STACK_BYTES_PER_SOURCE_BYTE;
    on_large_stack(stack, || {
        environment
            .add_template_owned(NAME, source)
            .map_err(|e| Fault::Input(format!("chat template: {e}")))
    })
}

fn value_of(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => n
            .as_i64()
            .map(Value::from)
            .or_else(|| n.as_u64().map(Value::from))
            .unwrap_or_else(|| Value::from(n.as_f64().unwrap_or(0.0))),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(list) => list.iter().map(value_of).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (Value::from(k.as_str()), value_of(v)))),
    }
}

/// The template's own words if it raised them, else what went wrong and where.
fn message_of(error: &Error) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if e.source().is_some_and(|s| s.is::<Raised>()) {
            if let Some(detail) = e.downcast_ref::<Error>().and_then(Error::detail) {
                return detail.to_string();
            }
        }
        cause = e.source();
    }
    let line = error.line().map_or(String::new(), |l| format!(" (line {l})"));
    match error.kind() {
        ErrorKind::OutOfFuel => "chat template takes too many steps for these messages".into(),
        _ => format!(
            "chat template: {}{line}",
            error
                .detail()
                .map_or_else(|| error.kind().to_string(), |d| format!("{}: {d}", error.kind()))
        ),
    }
}

fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

fn set_up(environment: &mut Environment<'static>) -> Result<(), Error> {
    environment.set_syntax(syntax()?);
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    guard::set_up(environment);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => out.write_str(&python::str_of(state, value)?).map_err(Error::from),
    });
    environment.add_filter(
        "tojson",
        |state: &State, value: Value, args: Rest<Value>, kwargs: Kwargs| python::to_json(state, &value, &args, &kwargs),
    );
    environment.add_filter("string", |state: &State, value: Value| python::str_of(state, &value));
    // Python's notions of kinds, which jinja2 tests by: strings and dicts are sequences too, an undefined value is an empty one,
    // and a bool is a number.
    environment.add_test("sequence", |value: Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined
        )
    });
    environment.add_test("iterable", |value: Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined | ValueKind::Iterable
        )
    });
    environment.add_test("number", |value: Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    environment.add_function(
        "raise_exception",
        |state: &State, message: Value| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, python::str_of(state, &message)?).with_source(Raised))
        },
    );
    environment.add_function("strftime_now", |state: &State, format: String| {
        let now = state
            .lookup("cairn_now_unix_s")
            .and_then(|v| i64::try_from(v).ok())
            .unwrap_or(0);
        strftime(now, &format)
    });
    Ok(())
}

/// strftime in local time.
fn strftime(unix_s: i64, format: &str) -> Result<String, Error> {
    let broken = || Error::new(ErrorKind::InvalidOperation, "strftime_now: format is not usable");
    if format.is_empty() {
        return Ok(String::new());
    }
    let format = std::ffi::CString::new(format).map_err(|_| broken())?;
    let mut out = vec![0u8; 1024];
    // SAFETY: the structs are plain data that localtime_r fills; strftime writes at most out.len() bytes.
    let written = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        let seconds: libc::time_t = unix_s;
        if libc::localtime_r(&seconds, &mut parts).is_null() {
            return Err(broken());
        }
        libc::strftime(out.as_mut_ptr().cast(), out.len(), format.as_ptr(), &parts)
    };
    out.truncate(written);
    String::from_utf8(out).map_err(|_| broken())
}

/// transformers marks what the assistant said with {% generation %} ... {% endgeneration %}; for a prompt the tags mean
/// nothing. They become comments, which trim white space exactly as the tags would.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let inner = tag[2..].find("%}").map(|end| &tag[2..2 + end]);
        match inner {
            Some(inner) if matches!(inner.trim_matches(['-', '+']).trim(), "generation" | "endgeneration") => {
                out.push_str("{#");
                out.push_str(inner);
                out.push_str("#}");
                rest = &tag[inner.len() + 4..];
            }
            _ => {
                out.push_str("{%");
                rest = &tag[2..];
            }
        }
    }
    out.push_str(rest);
    out
}
