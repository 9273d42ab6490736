//! Results of checks of the machine. Each runtime checks what it needs.

use std::borrow::Cow;

use serde::Serialize;

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing is wrong.
    Ok,
    /// Information only.
    Info,
    /// Pods run, but some of them not as requested.
    Warn,
    /// Pods do not run.
    Fail,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check, one or two words.
    pub check: &'static str,
    /// How serious it is.
    pub level: Level,
    /// What the check found.
    pub found: String,
    /// The consequence for pods.
    pub means: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Cow<'static, str>>,
}

/// Creates a finding without a remedy.
pub fn finding(
    check: &'static str,
    level: Level,
    found: impl Into<String>,
    means: impl Into<String>,
) -> Finding {
    Finding { check, level, found: found.into(), means: means.into(), remedy: None }
}

impl Finding {
    /// Adds a remedy to the finding.
    pub fn remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }
}
