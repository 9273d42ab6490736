//! Checks the schedule of a CronJob, as the API server does. Outrigger does not run CronJobs on a schedule;
//! it only refuses schedules that a cluster would refuse.

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const NICKNAMES: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// The fields of a schedule: name, lowest number, highest number, and the words that can replace numbers from
/// the lowest on.
const FIELDS: [(&str, u32, u32, &[&str]); 5] = [
    ("minute", 0, 59, &[]),
    ("hour", 0, 23, &[]),
    ("day of the month", 1, 31, &[]),
    ("month", 1, 12, &MONTHS),
    ("day of the week", 0, 6, &DAYS),
];

/// Why a schedule is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The time zone has a field of its own.
    #[error("it has a time zone; write that to `timeZone`")]
    TimeZone,
    /// A word that begins with `@`, but is not a schedule.
    #[error("{0:?} is none of {list} and @every", list = NICKNAMES.join(", "))]
    Nickname(String),
    /// The number of its fields.
    #[error("it has {0} of 5 fields")]
    FieldCount(usize),
    /// A part of a field is not a value that the field can have.
    #[error("{part:?} is no {field} ({least} to {most})")]
    Field {
        /// The part.
        part: String,
        /// The name of the field.
        field: &'static str,
        /// The least value of the field.
        least: u32,
        /// The greatest value of the field.
        most: u32,
    },
}

/// Checks a schedule.
///
/// # Errors
/// What is wrong with it.
pub fn check_schedule(text: &str) -> Result<(), ScheduleError> {
    if text.contains("TZ") {
        return Err(ScheduleError::TimeZone);
    }
    if text.starts_with('@') {
        let every = text.strip_prefix("@every ").is_some_and(is_duration);
        return match every || NICKNAMES.contains(&text) {
            true => Ok(()),
            false => Err(ScheduleError::Nickname(text.to_owned())),
        };
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(ScheduleError::FieldCount(fields.len()));
    }
    for (parts, (field, least, most, words)) in fields.iter().zip(FIELDS) {
        for part in parts.split(',') {
            if !is_range(part, least, most, words) {
                return Err(ScheduleError::Field { part: part.to_owned(), field, least, most });
            }
        }
    }
    Ok(())
}

/// Whether this is `*`, `N` or `N-M`, with an optional `/STEP`.
fn is_range(part: &str, least: u32, most: u32, words: &[&str]) -> bool {
    let number = |text: &str| {
        let word = words.iter().position(|word| word.eq_ignore_ascii_case(text));
        let named = word.and_then(|at| u32::try_from(at).ok()).map(|at| at + least);
        let digits = || text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
        named.or_else(digits).filter(|n| (least..=most).contains(n))
    };
    let (range, step) = match part.split_once('/') {
        Some((range, step)) => (range, step.parse::<u32>().ok()),
        None => (part, Some(1)),
    };
    let ordered = match range.split_once('-') {
        _ if range == "*" || range == "?" => true,
        Some((from, to)) => matches!((number(from), number(to)), (Some(from), Some(to)) if from <= to),
        None => number(range).is_some(),
    };
    ordered && step.is_some_and(|step| step > 0)
}

/// Whether this is a duration as Go writes it, such as `1h30m`.
fn is_duration(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let unit = ["ms", "us", "ns", "h", "m", "s"].iter().find(|unit| rest[digits..].starts_with(**unit));
        match unit {
            Some(unit) if digits > 0 => rest = &rest[digits + unit.len()..],
            _ => return false,
        }
    }
    !text.is_empty()
}

#[cfg(test)]
mod tests {
    use super::check_schedule;

    #[test]
    fn schedules_are_those_of_a_cluster() {
        for good in [
            "* * * * *",
            "0 3 * * *",
            "*/5 0-6,22 1,15 jan-MAR mon-fri",
            "? ? ? ? ?",
            "@daily",
            "@every 1h30m",
            "0 0 31 2 0",
            "10-50/20 * * * *",
        ] {
            assert_eq!(check_schedule(good), Ok(()), "{good:?}");
        }
        for (bad, says) in [
            ("x y", "2 of 5 fields"),
            ("", "0 of 5 fields"),
            ("* * * * * *", "6 of 5 fields"),
            ("60 * * * *", "\"60\" is no minute (0 to 59)"),
            ("* * 0 * *", "no day of the month (1 to 31)"),
            ("* * * * 7", "no day of the week (0 to 6)"),
            ("* 5-3 * * *", "hour (0 to 23)"),
            ("*/0 * * * *", "no minute"),
            ("+1 * * * *", "no minute"),
            ("@fortnightly", "is none of"),
            ("@every soon", "is none of"),
            ("CRON_TZ=UTC 0 * * * *", "timeZone"),
        ] {
            let said = check_schedule(bad).expect_err(bad).to_string();
            assert!(said.contains(says), "{bad:?}: {said}");
        }
    }
}
