//! Rows of docs/internals/spec/kubelet-lifecycle.md sections 12.8, 12.9, 12.16 and 12.17.

mod conditions;
mod conversion;
mod phase;
