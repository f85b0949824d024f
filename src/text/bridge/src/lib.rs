//! C ABI over Hugging Face `tokenizers` and `minijinja`. Text that crosses must be valid UTF-8 (the
//! C++ side checks), every function catches panics, and results or error messages come back in a
//! buffer that Rust owns until `cairn_buffer_free`.

mod byte_table;
mod guard;
mod messages;
mod python;
mod ranks;
mod split;
mod spm;
mod strings;
mod template;
mod tokenizer;

use std::panic::{catch_unwind, AssertUnwindSafe};

/// Why a call failed. The numbers are shared with bridge.h.
#[derive(Debug)]
pub enum Fault {
    /// The input (a file's contents, a spec, a JSON text) is wrong.
    Input(String),
    /// The template called raise_exception, or could not be rendered for these messages.
    Template(String),
    Unsupported(String),
    /// The template took too many steps, or wrote too much.
    Exhausted(String),
}

type Outcome<T> = Result<T, Fault>;

const OK: i32 = 0;
const INPUT: i32 = 1;
const TEMPLATE: i32 = 2;
const UNSUPPORTED: i32 = 3;
const PANIC: i32 = 4;
const EXHAUSTED: i32 = 5;

#[repr(C)]
pub struct Slice {
    data: *const u8,
    size: usize,
}

impl Slice {
    /// SAFETY: data points to size bytes that outlive the call, or size is 0.
    unsafe fn bytes(&self) -> &[u8] {
        if self.size == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(self.data, self.size)
        }
    }

    unsafe fn text(&self) -> Outcome<&str> {
        std::str::from_utf8(self.bytes()).map_err(|_| Fault::Input("text is not valid UTF-8".into()))
    }
}

#[repr(C)]
pub struct Buffer {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

fn fill(out: *mut Buffer, bytes: Vec<u8>) {
    let mut bytes = std::mem::ManuallyDrop::new(bytes);
    // SAFETY: out is a valid pointer to a Buffer that holds nothing yet.
    unsafe {
        *out = Buffer {
            data: bytes.as_mut_ptr(),
            size: bytes.len(),
            capacity: bytes.capacity(),
        };
    }
}

fn guard(out: *mut Buffer, body: impl FnOnce() -> Outcome<Vec<u8>>) -> i32 {
    let (code, bytes) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(bytes)) => (OK, bytes),
        Ok(Err(Fault::Input(m))) => (INPUT, m.into_bytes()),
        Ok(Err(Fault::Template(m))) => (TEMPLATE, m.into_bytes()),
        Ok(Err(Fault::Unsupported(m))) => (UNSUPPORTED, m.into_bytes()),
        Ok(Err(Fault::Exhausted(m))) => (EXHAUSTED, m.into_bytes()),
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|s| s.to_string())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "unknown".into());
            (PANIC, format!("panic in the text bridge: {text}").into_bytes())
        }
    };
    fill(out, bytes);
    code
}

/// Silences the default panic message: panics come back as errors.
#[no_mangle]
pub extern "C" fn cairn_bridge_init() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// SAFETY: buffer came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn cairn_buffer_free(buffer: Buffer) {
    if !buffer.data.is_null() {
        drop(Vec::from_raw_parts(buffer.data, buffer.size, buffer.capacity));
    }
}

/// Strings laid end to end; `ends[i]` is the end of string i.
#[repr(C)]
pub struct Strings {
    bytes: Slice,
    ends: *const u64,
    count: usize,
}

impl Strings {
    unsafe fn list(&self) -> Outcome<Vec<&str>> {
        let bytes = self.bytes.bytes();
        let ends: &[u64] = if self.count == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(self.ends, self.count)
        };
        let mut start = 0usize;
        let mut list = Vec::with_capacity(ends.len());
        for (i, &end) in ends.iter().enumerate() {
            let end = end as usize;
            let piece = bytes
                .get(start..end)
                .ok_or_else(|| Fault::Input(format!("string {i} lies outside its bytes")))?;
            list.push(std::str::from_utf8(piece).map_err(|_| Fault::Input(format!("string {i} is not valid UTF-8")))?);
            start = end;
        }
        Ok(list)
    }
}

#[repr(C)]
pub struct Spec {
    kind: i32,
    pre: Slice,
    tokens: Strings,
    merges: Strings,
    scores: *const f32,
    types: *const i32,
    add_space_prefix: i32,
}

/// SAFETY: the pointers of spec are valid; scores and types are null or hold tokens.count values;
/// handle and out are valid.
#[no_mangle]
pub unsafe extern "C" fn cairn_tokenizer_from_spec(
    spec: *const Spec,
    handle: *mut *mut tokenizer::Tokenizer,
    out: *mut Buffer,
) -> i32 {
    guard(out, || {
        let spec = &*spec;
        let tokens = spec.tokens.list()?;
        let array = |p: *const f32| {
            if p.is_null() {
                &[][..]
            } else {
                std::slice::from_raw_parts(p, tokens.len())
            }
        };
        let scores = array(spec.scores);
        let types = if spec.types.is_null() {
            &[][..]
        } else {
            std::slice::from_raw_parts(spec.types, tokens.len())
        };
        let made = match spec.kind {
            0 => tokenizer::Tokenizer::byte_level(spec.pre.text()?, &tokens, &spec.merges.list()?, types)?,
            1 => tokenizer::Tokenizer::sentence_piece(&tokens, scores, types, spec.add_space_prefix != 0)?,
            other => return Err(Fault::Input(format!("tokenizer kind {other} is unknown"))),
        };
        *handle = Box::into_raw(Box::new(made));
        Ok(Vec::new())
    })
}

/// SAFETY: as above.
#[no_mangle]
pub unsafe extern "C" fn cairn_tokenizer_from_json(
    json: Slice,
    handle: *mut *mut tokenizer::Tokenizer,
    out: *mut Buffer,
) -> i32 {
    guard(out, || {
        let made = tokenizer::Tokenizer::from_json(json.text()?)?;
        *handle = Box::into_raw(Box::new(made));
        Ok(Vec::new())
    })
}

/// ranks: a tiktoken.model; config: its tokenizer_config.json. SAFETY: as above.
#[no_mangle]
pub unsafe extern "C" fn cairn_tokenizer_from_ranks(
    ranks: Slice,
    config: Slice,
    handle: *mut *mut tokenizer::Tokenizer,
    out: *mut Buffer,
) -> i32 {
    guard(out, || {
        let made = ranks::tokenizer(ranks.text()?, config.text()?)?;
        *handle = Box::into_raw(Box::new(made));
        Ok(Vec::new())
    })
}

/// SAFETY: handle came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn cairn_tokenizer_free(handle: *mut tokenizer::Tokenizer) {
    drop(Box::from_raw(handle));
}

/// What token ids stand for. part 0: the bytes of all tokens end to end; 1: their ends (u64 each);
/// 2: one flag byte each (byte_table::FLAG_*); 3: ids put before the text, 4: ids put after it;
/// 5: one byte, 1 if a decoded text loses one leading space.
/// SAFETY: handle and out are valid.
#[no_mangle]
pub unsafe extern "C" fn cairn_tokenizer_part(handle: *const tokenizer::Tokenizer, part: i32, out: *mut Buffer) -> i32 {
    guard(out, || {
        let t = &*handle;
        let words = |ids: &[u32]| ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
        Ok(match part {
            0 => t.table.bytes.clone(),
            1 => t.table.ends.iter().flat_map(|e| e.to_ne_bytes()).collect(),
            2 => t.table.flags.clone(),
            3 => words(&t.prefix),
            4 => words(&t.suffix),
            5 => vec![u8::from(t.strip_leading_space)],
            other => return Err(Fault::Input(format!("part {other} is unknown"))),
        })
    })
}

/// out: u32 ids. SAFETY: handle and out are valid, text is readable.
#[no_mangle]
pub unsafe extern "C" fn cairn_tokenizer_encode(
    handle: *const tokenizer::Tokenizer,
    text: Slice,
    parse_special: i32,
    out: *mut Buffer,
) -> i32 {
    guard(out, || {
        let ids = (*handle).encode(text.text()?, parse_special != 0)?;
        Ok(ids.iter().flat_map(|id| id.to_ne_bytes()).collect())
    })
}

/// SAFETY: handle and out are valid, source is readable.
#[no_mangle]
pub unsafe extern "C" fn cairn_template_compile(
    source: Slice,
    handle: *mut *mut template::Template,
    out: *mut Buffer,
) -> i32 {
    guard(out, || {
        let made = template::Template::compile(source.text()?)?;
        *handle = Box::into_raw(Box::new(made));
        Ok(Vec::new())
    })
}

/// SAFETY: handle came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn cairn_template_free(handle: *mut template::Template) {
    drop(Box::from_raw(handle));
}

#[repr(C)]
pub struct RenderInput {
    messages: Slice,       // JSON array
    tools: Slice,          // JSON array, null, or empty text for none
    default_kwargs: Slice, // JSON object, null, or empty text for none
    kwargs: Slice,         // the same; its keys win
    bos_token: Slice,
    eos_token: Slice,
    add_generation_prompt: i32,
    now_unix_s: i64,
    steps_max: u64, // 0: as many as the input deserves
}

/// out: the prompt. SAFETY: handle, input and out are valid.
#[no_mangle]
pub unsafe extern "C" fn cairn_template_render(
    handle: *const template::Template,
    input: *const RenderInput,
    out: *mut Buffer,
) -> i32 {
    guard(out, || {
        let i = &*input;
        let prompt = (*handle).render(&template::Input {
            messages: i.messages.text()?,
            tools: i.tools.text()?,
            default_kwargs: i.default_kwargs.text()?,
            kwargs: i.kwargs.text()?,
            bos_token: i.bos_token.text()?,
            eos_token: i.eos_token.text()?,
            add_generation_prompt: i.add_generation_prompt != 0,
            now_unix_s: i.now_unix_s,
            steps_max: i.steps_max,
        })?;
        Ok(prompt.into_bytes())
    })
}

/// out: the text of config[name] (a string, or an object with "content"); empty if there is none.
/// SAFETY: config and name are readable, out is valid.
#[no_mangle]
pub unsafe extern "C" fn cairn_config_token(config: Slice, name: Slice, out: *mut Buffer) -> i32 {
    guard(out, || {
        let json: serde_json::Value =
            serde_json::from_str(config.text()?).map_err(|e| Fault::Input(format!("tokenizer_config.json: {e}")))?;
        let token = &json[name.text()?];
        let text = token.as_str().or_else(|| token["content"].as_str()).unwrap_or_default();
        Ok(text.as_bytes().to_vec())
    })
}
