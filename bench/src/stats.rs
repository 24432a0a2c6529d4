//! Medians and percentiles.

/// The value below which `percent` of the values lie (nearest rank); zero of none.
pub fn percentile(values: &[f64], percent: u32) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (sorted.len() * percent as usize).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or(0.0)
}

/// The middle value: what one disturbed round cannot move.
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 50)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((median(&values), percentile(&values, 99), percentile(&values, 100)), (50.0, 99.0, 100.0));
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }
}
