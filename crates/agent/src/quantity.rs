//! Quantities for the runtime and the downward API. Negative values become zero.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use outrigger_lifecycle::{Amount, parse_quantity};

fn amount(quantity: &Quantity) -> Result<Amount, String> {
    parse_quantity(&quantity.0).map_err(|e| e.to_string())
}

/// Whole units, rounded up.
pub(crate) fn value(quantity: &Quantity) -> Result<u64, String> {
    amount(quantity).map(|a| u64::try_from(a.value()).unwrap_or(0))
}

/// Thousandths, rounded up.
pub(crate) fn milli_value(quantity: &Quantity) -> Result<u64, String> {
    amount(quantity).map(|a| u64::try_from(a.milli_value()).unwrap_or(0))
}
