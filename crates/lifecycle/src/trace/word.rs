//! Writes and reads enums by the words that users know, which are not always the variant names.

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::observation::{ExitReason, HookKind, Verdict};
use crate::plan::Role;
use crate::status::Phase;

/// An enum with a word for each of its values.
pub(super) trait Word: Copy + 'static {
    const ALL: &'static [Self];

    fn word(self) -> &'static str;

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.word() == word)
    }
}

impl Word for Role {
    const ALL: &'static [Role] = &Role::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

impl Word for Phase {
    const ALL: &'static [Phase] = &[Phase::Pending, Phase::Running, Phase::Succeeded, Phase::Failed];

    fn word(self) -> &'static str {
        self.name()
    }
}

impl Word for ExitReason {
    const ALL: &'static [ExitReason] = &[
        ExitReason::Completed,
        ExitReason::Error,
        ExitReason::OomKilled,
        ExitReason::StartError,
        ExitReason::ContainerStatusUnknown,
        ExitReason::RestartingAllContainers,
    ];

    fn word(self) -> &'static str {
        self.name()
    }
}

impl Word for HookKind {
    const ALL: &'static [HookKind] = &[HookKind::PostStart, HookKind::PreStop, HookKind::FirstPreStop];

    fn word(self) -> &'static str {
        self.name()
    }
}

impl Word for Verdict {
    const ALL: &'static [Verdict] = &[Verdict::Unknown, Verdict::Success, Verdict::Failure];

    fn word(self) -> &'static str {
        match self {
            Verdict::Unknown => "unknown",
            Verdict::Success => "success",
            Verdict::Failure => "failure",
        }
    }
}

pub(super) fn serialize<T: Word, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    value.word().serialize(to)
}

pub(super) fn deserialize<'de, T: Word, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    T::from_word(&text).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &"a known word"))
}

/// The same for an optional detail. An unknown word becomes `None`, because newer versions may have more
/// words.
pub(super) mod option {
    use super::*;

    pub(in super::super) fn serialize<T: Word, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(Word::word).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, T: Word, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        Ok(Option::<String>::deserialize(from)?.and_then(|text| T::from_word(&text)))
    }
}
