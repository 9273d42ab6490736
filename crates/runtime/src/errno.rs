//! Error messages of the kernel in the style of our own messages.

use std::io;

/// The text of an error as runtimes print it: lower case, without the number.
pub fn errno_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    match (chars.next(), chars.clone().next()) {
        // Abbreviations such as "RPC" keep their capitals.
        (Some(first), Some(second)) if second.is_lowercase() || second == ' ' => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}
