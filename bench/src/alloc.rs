//! An allocator that counts.
//!
//! A binary that counts has `#[global_allocator] static A: Counting = Counting;`. Without it all
//! counts stay zero. It counts from the start; [`pause`] stops that where time is measured.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// The system's allocator, with counters before it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
static PAUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    // No destructor, no lazy part: the allocator itself may touch it at any time of a thread's life.
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allocations of the whole process; a reallocation counts as one.
    pub allocations: u64,
    /// Allocations of the calling thread.
    pub of_thread: u64,
    /// Bytes asked for and not given back.
    pub live_bytes: i64,
}

/// Reads the counters.
pub fn counts() -> Counts {
    Counts {
        allocations: ALLOCATIONS.load(Ordering::Relaxed),
        of_thread: OF_THREAD.try_with(Cell::get).unwrap_or(0),
        live_bytes: LIVE_BYTES.load(Ordering::Relaxed),
    }
}

/// Whether this binary counts.
pub fn is_counting() -> bool {
    let before = counts();
    drop(std::hint::black_box(Box::new(0u8)));
    counts().of_thread > before.of_thread
}

/// Stops or resumes the counting. Only differences between two readings with no pause between them
/// mean anything.
pub fn pause(paused: bool) {
    PAUSED.store(paused, Ordering::Relaxed);
}

fn count(bytes: i64) {
    if PAUSED.load(Ordering::Relaxed) {
        return;
    }
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed);
    // A thread that is going away counts for the process alone.
    let _ = OF_THREAD.try_with(|n| n.set(n.get() + 1));
}

#[allow(
    unsafe_code,
    reason = "an allocator cannot be written without; each call goes to the system's unchanged"
)]
// SAFETY: every method hands its arguments on to `System` as they came and returns what it returned,
// so that each of the trait's conditions holds because it holds there. The counters are atomics and a
// thread-local without destructor: they neither allocate nor unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if !PAUSED.load(Ordering::Relaxed) {
            LIVE_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}
