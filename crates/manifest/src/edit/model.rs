//! The same edits on plain values. They give the expected result of an edit.

use outrigger_lifecycle::{FieldPath, Segment};
use serde_json::Value;

fn at<'v>(root: &'v mut Value, path: &[Segment]) -> Option<&'v mut Value> {
    path.iter().try_fold(root, |value, segment| match segment {
        Segment::Field(name) => value.as_object_mut()?.get_mut(name.as_ref()),
        Segment::Index(index) => value.as_array_mut()?.get_mut(*index),
    })
}

/// Sets or adds a value.
pub(super) fn set(root: &mut Value, path: &FieldPath, value: Value) -> Option<()> {
    let Some((last, parent)) = path.0.split_last() else {
        *root = value;
        return Some(());
    };
    let parent = at(root, parent)?;
    match last {
        Segment::Field(name) => {
            parent.as_object_mut()?.insert(name.to_string(), value);
        }
        Segment::Index(index) => *parent.as_array_mut()?.get_mut(*index)? = value,
    }
    Some(())
}

/// Removes a value.
pub(super) fn remove(root: &mut Value, path: &FieldPath) -> Option<()> {
    let (last, parent) = path.0.split_last()?;
    let parent = at(root, parent)?;
    match last {
        Segment::Field(name) => {
            parent.as_object_mut()?.shift_remove(name.as_ref())?;
        }
        Segment::Index(index) => {
            let items = parent.as_array_mut()?;
            if *index >= items.len() {
                return None;
            }
            items.remove(*index);
        }
    }
    Some(())
}

/// Adds a list entry.
pub(super) fn insert_item(root: &mut Value, path: &FieldPath, index: usize, value: Value) -> Option<()> {
    let items = at(root, &path.0)?.as_array_mut()?;
    if index > items.len() {
        return None;
    }
    items.insert(index, value);
    Some(())
}
