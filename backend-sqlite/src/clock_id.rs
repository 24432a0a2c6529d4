//! Whose boot clock a row is dated by.
//!
//! A row's end is a reading of CLOCK_BOOTTIME, which is one clock for all processes of a machine until its
//! next boot, except where a time namespace shifts it. The clock id names that clock: the boot id and the
//! shift. Two processes with the same id read the same clock; two with different ids may still read the same
//! one (a container may have a boot id of its own), and that costs time, never exclusion: a row of another id
//! is never taken for expired (see [`crate::record`]).
//!
//! What can go wrong, and where it is handled:
//! * A process unshared its time namespace and has not entered it: `/proc/self/timens_offsets` shows the
//!   shift of its children. Then the two namespace links differ, and the process gets an id of its own.
//! * No `/proc`, or no boot id in it: an id of its own.
//! * A boot id that survives a reboot (over-mounted with a constant): a row that was dated later than now is
//!   treated as another clock's.

use std::fs;

use leasehold_core::OwnerId;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const OFFSETS: &str = "/proc/self/timens_offsets";
const NAMESPACE: &str = "/proc/self/ns/time";
const NAMESPACE_OF_CHILDREN: &str = "/proc/self/ns/time_for_children";

/// The id of this process's boot clock. Constant for the life of the process.
pub(crate) fn clock_id() -> String {
    let read = |path| fs::read_to_string(path).ok();
    let link = |path| fs::read_link(path).ok().map(|target| target.to_string_lossy().into_owned());
    from_proc(read(BOOT_ID), read(OFFSETS), link(NAMESPACE), link(NAMESPACE_OF_CHILDREN)).unwrap_or_else(
        // Foreign to everybody: leases exclude as ever, and what a crash leaves costs two ttls.
        || format!("own+{}", OwnerId::random().to_hex()),
    )
}

fn from_proc(
    boot_id: Option<String>,
    offsets: Option<String>,
    namespace: Option<String>,
    of_children: Option<String>,
) -> Option<String> {
    let boot_id = boot_id?;
    let boot_id = boot_id.trim();
    if boot_id.is_empty() || boot_id.len() > 64 || !boot_id.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    let shift = match (offsets, namespace, of_children) {
        // A kernel without time namespaces shifts nothing.
        (None, None, None) => "0.0".to_owned(),
        (Some(offsets), Some(mine), Some(childrens)) if mine == childrens => boottime_shift(&offsets)?,
        _ => return None,
    };
    Some(format!("{boot_id}+{shift}"))
}

/// Seconds and nanoseconds of the line `boottime <secs> <nanos>`.
fn boottime_shift(offsets: &str) -> Option<String> {
    offsets.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        // Clocks have a name on newer kernels and a number (7: CLOCK_BOOTTIME) on older ones.
        matches!(words.next()?, "boottime" | "7").then_some(())?;
        let seconds: i64 = words.next()?.parse().ok()?;
        let nanos: i64 = words.next()?.parse().ok()?;
        Some(format!("{seconds}.{nanos}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSETS_TEXT: &str = "monotonic           0         0\nboottime       100000         5\n";

    fn id(boot: &str, offsets: Option<&str>, mine: Option<&str>, childrens: Option<&str>) -> Option<String> {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        from_proc(Some(boot.to_owned()), owned(offsets), owned(mine), owned(childrens))
    }

    #[test]
    fn boot_and_shift_make_the_id() {
        let time = Some("time:[1]");
        assert_eq!(id("b\n", Some(OFFSETS_TEXT), time, time).as_deref(), Some("b+100000.5"));
        assert_eq!(id("b", None, None, None).as_deref(), Some("b+0.0"));
    }

    #[test]
    fn what_cannot_be_told_is_an_id_of_its_own() {
        let time = Some("time:[1]");
        assert_eq!(id("b", Some(OFFSETS_TEXT), time, Some("time:[2]")), None, "the children's shift");
        assert_eq!(id("b", None, time, time), None, "no shift to read");
        assert_eq!(id("b", Some("garbage"), time, time), None);
        assert_eq!(id("", Some(OFFSETS_TEXT), time, time), None);
        assert_eq!(from_proc(None, None, None, None), None);
    }

    #[test]
    fn this_process_has_one() {
        assert_eq!(clock_id(), clock_id());
        assert!(clock_id().contains('+'));
    }
}
