//! All decisions, as pure functions: the state of the API server goes in, patches and steps come out.
//!
//! | module | question |
//! |---|---|
//! | [`admit`] | what is changed in a pod that is being created, or why is it refused? |
//! | `native` | which of its containers become native sidecars, and in which order? |
//! | [`barrier`] | which keys are published, and what is reported? |
//! | [`terminate`] | which sidecars are stopped now, and how? |
//! | [`request`] | is a container recreate request valid, and which fields are filled in? |
//! | [`convert`] | how does a request look in the other version? |
//! | [`serve`] | what does the agent of a node do next for a request? |
//! | [`oversee`] | what does the operator do next for a request? |
//! | [`explain`] | what is a pod waiting for, in a sentence? |

pub mod admit;
pub mod barrier;
pub mod convert;
pub mod explain;
mod native;
pub mod oversee;
pub mod request;
pub mod serve;
pub mod terminate;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests read the specification")]
mod tests;

/// The maximum length of a message.
const MESSAGE_MAX: usize = 1_000;
/// The maximum length of a quotation in a message.
const QUOTE_MAX: usize = 64;

/// Why an object is refused: the HTTP code and a message for its author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The HTTP status code.
    pub code: u16,
    /// What is wrong and how to fix it.
    pub message: String,
}

impl Refusal {
    /// Creates a refusal. The message may quote the author, so it is shortened and made safe for a terminal.
    pub(crate) fn new(code: u16, message: impl AsRef<str>) -> Self {
        let message = shorten_quotes(message.as_ref());
        let is_long = message.chars().nth(MESSAGE_MAX).is_some();
        let short: String = message.chars().take(MESSAGE_MAX).chain(is_long.then_some('…')).collect();
        Refusal { code, message: without_controls(&short) }
    }
}

/// Makes a text safe for the API server, which passes it on to terminals. It removes control characters,
/// including the colour codes that our own texts may have.
pub(crate) fn without_controls(text: &str) -> String {
    outrigger_text::terminal::safe_text(&text.replace('\u{1b}', "\\u001b")).to_string()
}

/// Shortens quotations in "…" or `…`, because authors can write values of any length.
fn shorten_quotes(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(MESSAGE_MAX));
    // The expected closing quote, and how many characters of the quotation were kept.
    let mut quote: Option<(char, usize)> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match &mut quote {
            None => {
                quote = matches!(c, '"' | '`').then_some((c, 0));
                out.push(c);
            }
            Some((end, _)) if c == *end => {
                quote = None;
                out.push(c);
            }
            Some((end, kept)) => {
                // An escape sequence counts as one character.
                let escaped = (c == '\\' && *end == '"').then(|| chars.next()).flatten();
                *kept += 1;
                match (*kept).cmp(&QUOTE_MAX) {
                    std::cmp::Ordering::Less => out.extend(std::iter::once(c).chain(escaped)),
                    std::cmp::Ordering::Equal => out.push('…'),
                    std::cmp::Ordering::Greater => {}
                }
            }
        }
    }
    out
}
