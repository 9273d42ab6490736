//! Sets of completion indexes, and their notation in Kubernetes: `1,3-5,7`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a text is not a set of indexes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexesError {
    /// A part is not a number.
    #[error("{0:?} is not an index")]
    NotAnIndex(String),
    /// There is no such index.
    #[error("index {index} is not below `completions` ({limit})")]
    TooLarge {
        /// The index.
        index: u32,
        /// `completions` of the Job.
        limit: u32,
    },
    /// The end of a range comes before its start.
    #[error("{0:?} runs backwards")]
    Backwards(String),
    /// A part repeats an index, or comes after a greater one.
    #[error("{0:?} is not in ascending order")]
    Order(String),
}

/// A set of indexes, kept as sorted intervals that do not touch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Indexes(Vec<(u32, u32)>);

impl Indexes {
    /// The first `count` indexes, from 0.
    pub fn first(count: u32) -> Self {
        Indexes(if count == 0 { Vec::new() } else { vec![(0, count - 1)] })
    }

    /// Parses `1,3-5,7`: in ascending order, each index below `limit`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str, limit: u32) -> Result<Self, IndexesError> {
        let number = |word: &str| match word.parse::<u32>() {
            Ok(index) if index < limit => Ok(index),
            Ok(index) => Err(IndexesError::TooLarge { index, limit }),
            Err(_) => Err(IndexesError::NotAnIndex(word.to_owned())),
        };
        let mut out = Indexes::default();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (from, to) = match part.split_once('-') {
                Some((from, to)) => (number(from)?, number(to)?),
                None => (number(part)?, number(part)?),
            };
            if from > to {
                return Err(IndexesError::Backwards(part.to_owned()));
            }
            match out.0.last_mut() {
                Some((_, last)) if *last >= from => {
                    return Err(IndexesError::Order(part.to_owned()));
                }
                Some((_, last)) if *last + 1 == from => *last = to,
                _ => out.0.push((from, to)),
            }
        }
        Ok(out)
    }

    /// The number of indexes.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|(from, to)| to - from + 1).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it contains an index.
    pub fn contains(&self, index: u32) -> bool {
        let after = self.0.partition_point(|(from, _)| *from <= index);
        after > 0 && index <= self.0[after - 1].1
    }

    /// How many of these are also in `others`.
    pub fn count_in(&self, others: &Indexes) -> u32 {
        let mut count = 0;
        let (mut a, mut b) = (self.0.iter().peekable(), others.0.iter().peekable());
        while let (Some(&&(a_from, a_to)), Some(&&(b_from, b_to))) = (a.peek(), b.peek()) {
            let (from, to) = (a_from.max(b_from), a_to.min(b_to));
            if from <= to {
                count += to - from + 1;
            }
            if a_to < b_to {
                a.next();
            } else {
                b.next();
            }
        }
        count
    }
}

impl FromIterator<u32> for Indexes {
    fn from_iter<I: IntoIterator<Item = u32>>(indexes: I) -> Self {
        let mut all: Vec<u32> = indexes.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        let mut out = Indexes::default();
        for index in all {
            match out.0.last_mut() {
                Some((_, last)) if *last + 1 == index => *last = index,
                _ => out.0.push((index, index)),
            }
        }
        out
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (from, to)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match to - from {
                0 => write!(f, "{comma}{from}")?,
                // The API uses intervals from three on; two neighbours are listed.
                1 => write!(f, "{comma}{from},{to}")?,
                _ => write!(f, "{comma}{from}-{to}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_written_as_the_api_documents_them() {
        let table: [(&[u32], &str); 6] = [
            (&[], ""),
            (&[1, 3, 4, 5, 7], "1,3-5,7"),
            (&[0, 1], "0,1"),
            (&[2, 1, 0, 0], "0-2"),
            (&[0, 2, 3, 5, 6, 7], "0,2,3,5-7"),
            (&[9], "9"),
        ];
        for (indexes, text) in table {
            let set: Indexes = indexes.iter().copied().collect();
            assert_eq!(set.to_string(), text);
            assert_eq!(Indexes::parse(text, 10), Ok(set), "{text}");
        }
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for text in ["10", "a", "1,", "3-1", "2,1", "1-3,2", "-1", "1--2", " 1"] {
            assert!(Indexes::parse(text, 10).is_err(), "{text}");
        }
        assert_eq!(Indexes::parse("0-3,4", 10).unwrap().to_string(), "0-4");
    }

    #[test]
    fn sets_are_searched_and_compared() {
        let set = Indexes::parse("1,3-5,7", 10).unwrap();
        let found: Vec<u32> = (0..10).filter(|i| set.contains(*i)).collect();
        assert_eq!(found, [1, 3, 4, 5, 7]);
        assert_eq!(set.len(), 5);
        assert_eq!(set.count_in(&Indexes::parse("0-3,5,7-9", 10).unwrap()), 4);
        assert_eq!(set.count_in(&Indexes::default()), 0);
        assert_eq!(Indexes::first(3).to_string(), "0-2");
        assert!(Indexes::first(0).is_empty());
    }
}
