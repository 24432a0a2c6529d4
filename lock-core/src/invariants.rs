//! The promises that code, cases and pages point at by id. Nothing here is executable.
//!
//! | id | promise |
//! |---|---|
//! | I1 | As the store sees it, at most one unexpired exclusive grant exists per name. |
//! | I2 | Tokens strictly increase per name: across expiry, release, deletion, forced release, restarts of process and store, and loss of the counter. Where a store cannot promise one of these, its documentation says so. |
//! | I3 | The holder's deadline is never later than the store's: `valid_until = anchor + min(ttl, granted − drift − margin)`, counted on a clock that includes suspend, from before the request was sent ([`crate::deadline`]). No remote wall clock is ever compared with a local one. |
//! | I4 | No unconditional write: every renewal and release compares the owner, atomically, in the store. |
//! | I5 | An unknown outcome is reported as unknown, never as success and never as failure ([`crate::Effect`]). |
//! | I6 | After a loss nothing of that lease is renewed and every [`crate::Lease::check`] fails. A check reads the clock itself; a failing check is terminal; a late reply resurrects nothing. |
//! | I7 | Dropping any future at any await leaves no grant: the attempt is driven to its end elsewhere and then released by its claim. |
//! | I8 | A release is idempotent, ordered (mark done, stop renewing, conditional delete) and safe against a renewal in flight. |
//! | I9 | No lost wake-up: a waiter tries again at the latest when the holder it saw would have expired. |
//! | I10 | Everything is bounded: names, metadata, retries, tasks, remembered tokens, store operations per lease. |
//! | I11 | A lease past its business deadline or maximum hold ends in the store too: nothing renews it any more, so its record runs out within one ttl. |
//! | I12 | No secret in a log, an error, a `Debug` print or the process list. Owner ids are capabilities: only an eight-digit fingerprint of them is ever shown. |
