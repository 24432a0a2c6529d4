//! The regression alarm: no grant is accepted whose token is not larger than one seen before.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::{LeaseName, Token};

/// Names whose highest token is remembered; beyond it an arbitrary one is forgotten.
const NAMES_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<HashMap<LeaseName, Token>>);

impl Seen {
    /// Remembers `token`, or returns the larger or equal one that was seen before.
    pub(crate) fn accept(&self, name: &LeaseName, token: Token) -> Result<(), Token> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.get_mut(name) {
            Some(highest) if *highest >= token && !crate::mutant!(RegressionUnnoticed) => {
                return Err(*highest);
            }
            Some(highest) => *highest = token,
            None => {
                if seen.len() >= NAMES_MAX
                    && let Some(victim) = seen.keys().next().cloned()
                {
                    seen.remove(&victim);
                }
                seen.insert(name.clone(), token);
            }
        }
        Ok(())
    }
}
