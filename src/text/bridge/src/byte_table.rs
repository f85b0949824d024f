//! What each token stands for: its bytes, and whether it is a control token.

pub const FLAG_KNOWN: u8 = 1; // the id is in use
pub const FLAG_SPECIAL: u8 = 2; // control or unknown: left out of decoded text unless asked for
pub const FLAG_ADDED: u8 = 4; // matched as a whole in text

/// The bytes of all tokens end to end.
#[derive(Default)]
pub struct ByteTable {
    pub bytes: Vec<u8>,
    pub ends: Vec<u64>,
    pub flags: Vec<u8>,
}

impl ByteTable {
    pub fn push(&mut self, bytes: &[u8], flags: u8) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len() as u64);
        self.flags.push(flags);
    }
}

/// GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 stands for itself, the others
/// take the characters from U+0100 on, in order.
pub struct ByteChars {
    pub to_char: [char; 256],
    from_char: std::collections::HashMap<char, u8>,
}

impl ByteChars {
    pub fn new() -> ByteChars {
        let mut to_char = ['\0'; 256];
        let mut next = 256u32;
        for (byte, slot) in to_char.iter_mut().enumerate() {
            let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            *slot = if printable {
                byte as u8 as char
            } else {
                next += 1;
                char::from_u32(next - 1).unwrap_or('\0')
            };
        }
        let from_char = to_char.iter().enumerate().map(|(byte, &c)| (c, byte as u8)).collect();
        ByteChars { to_char, from_char }
    }

    /// The bytes a token stands for, or its own text if it holds a character that stands for none.
    pub fn decode(&self, token: &str) -> Vec<u8> {
        let bytes: Option<Vec<u8>> = token.chars().map(|c| self.from_char.get(&c).copied()).collect();
        bytes.unwrap_or_else(|| token.as_bytes().to_vec())
    }
}

/// "<0x0A>" -> 10.
pub fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}
