//! Messages as clients send them, made fit for what a template can read. What a template reads is
//! found out once, by rendering small chats.

use serde_json::{json, Map, Value};

/// What a template understands. The default is the plainest reader.
#[derive(Default, Clone, Copy)]
pub struct Ability {
    content_parts: bool,    // content may be a list of parts
    content_string: bool,   // content may be a string
    argument_strings: bool, // a tool call's arguments may be a string, and reach the prompt unchanged
    argument_objects: bool, // a tool call's arguments may be an object, and do not come out as Python
    developer_role: bool,
    null_content: bool, // an assistant message with tool calls may have content null
}

const NEEDLE: &str = "Qz7needle";

/// `render` gives the prompt of a chat, or None if the template fails.
pub fn probe(render: impl Fn(&Value) -> Option<String>) -> Ability {
    let shows = |list: &Value, text: &str| render(list).is_some_and(|prompt| prompt.contains(text));
    let user = json!({"role": "user", "content": "hi"});
    let call = |content: Value, arguments: Value| {
        json!([user, {"role": "assistant", "content": content, "tool_calls":
            [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}]}])
    };
    let parts = render(&json!([{"role": "user", "content": [{"type": "text", "text": NEEDLE}]}]));
    // A template that prints the list as Python would shows the key, and not only the text.
    let content_parts = parts.is_some_and(|p| p.contains(NEEDLE) && !p.contains("'type'") && !p.contains("\"type\""));
    let developer = json!([{"role": "developer", "content": NEEDLE}, user]);
    let objects = render(&call(json!(""), json!({"k": NEEDLE})));
    let null_content = render(&call(Value::Null, json!({"k": NEEDLE})))
        .is_some_and(|p| p.contains(NEEDLE) && !p.contains("None") && !p.contains("none") && !p.contains("null"));
    Ability {
        content_parts,
        content_string: shows(&json!([{"role": "user", "content": NEEDLE}]), NEEDLE),
        argument_strings: shows(
            &call(json!(""), json!("{\"k\":  \"Qz7needle\"}")),
            "{\"k\":  \"Qz7needle\"}",
        ),
        argument_objects: objects.is_some_and(|p| p.contains(NEEDLE) && !p.contains("{'k'")),
        developer_role: shows(&developer, NEEDLE),
        null_content,
    }
}

/// Rewrites each message in place. Messages of a wrong shape are left as they are: the server has checked what it must.
pub fn adapt(list: &mut Value, ability: &Ability) {
    for message in list.as_array_mut().into_iter().flatten() {
        if let Some(message) = message.as_object_mut() {
            adapt_one(message, ability);
        }
    }
}

fn adapt_one(message: &mut Map<String, Value>, ability: &Ability) {
    if message.get("role").and_then(Value::as_str) == Some("developer") && !ability.developer_role {
        message.insert("role".into(), json!("system"));
    }
    if message.get("reasoning_content").is_none_or(Value::is_null) {
        message.shift_remove("reasoning_content");
        if let Some(text) = message.get("reasoning").filter(|v| v.is_string()).cloned() {
            message.insert("reasoning_content".into(), text);
        }
    }
    if message
        .get("tool_calls")
        .is_some_and(|v| v.is_null() || v.as_array().is_some_and(Vec::is_empty))
    {
        message.shift_remove("tool_calls");
    }
    adapt_content(message, ability);
    for call in message
        .get_mut("tool_calls")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let holder = if call.get("function").is_some() {
            &mut call["function"]
        } else {
            call
        };
        if let Some(holder) = holder.as_object_mut() {
            adapt_arguments(holder, ability);
        }
    }
}

/// No arguments are an empty object; a string is parsed and an object written out where the template needs the other one.
fn adapt_arguments(call: &mut Map<String, Value>, ability: &Ability) {
    let blank = match call.get("arguments") {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.trim().is_empty(),
        _ => false,
    };
    if blank {
        call.insert("arguments".into(), json!({}));
    }
    let adapted = match &call["arguments"] {
        Value::String(text) if !ability.argument_strings => {
            serde_json::from_str::<Value>(text).ok().filter(Value::is_object)
        }
        object @ Value::Object(_) if ability.argument_strings && !ability.argument_objects => {
            Some(json!(object.to_string()))
        }
        _ => None,
    };
    if let Some(adapted) = adapted {
        call.insert("arguments".into(), adapted);
    }
}

fn adapt_content(message: &mut Map<String, Value>, ability: &Ability) {
    match message.get("content") {
        None | Some(Value::Null) => {
            let keep = ability.null_content && message.contains_key("content") && message.contains_key("tool_calls");
            if !keep {
                message.insert("content".into(), json!(""));
            }
        }
        Some(Value::Array(parts)) if !ability.content_parts => {
            let text: String = parts
                .iter()
                .filter_map(|p| p.as_str().or_else(|| p.get("text").and_then(Value::as_str)))
                .collect();
            message.insert("content".into(), json!(text));
        }
        Some(Value::String(text)) if !ability.content_string && ability.content_parts => {
            let parts = json!([{"type": "text", "text": text}]);
            message.insert("content".into(), parts);
        }
        _ => {}
    }
}
