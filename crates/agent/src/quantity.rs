//! Quantities for the runtime and the downward API. Negative values become zero.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use outrigger_lifecycle::{QuantityError, parse_quantity};

/// Whole units, rounded up.
pub(crate) fn value(quantity: &Quantity) -> Result<u64, QuantityError> {
    parse_quantity(&quantity.0).map(|a| u64::try_from(a.value()).unwrap_or(0))
}

/// Thousandths, rounded up.
pub(crate) fn milli_value(quantity: &Quantity) -> Result<u64, QuantityError> {
    parse_quantity(&quantity.0).map(|a| u64::try_from(a.milli_value()).unwrap_or(0))
}
