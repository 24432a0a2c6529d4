/* Shifts the wall clock of the process it is preloaded into, by the nanoseconds that the first eight
 * bytes of the file $LEASEHOLD_WALLCLOCK hold at the time of the call. Only the wall clock: boot and
 * monotonic clock pass through. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

typedef int (*gettime_fn)(clockid_t, struct timespec *);

static const volatile int64_t *offset;
static gettime_fn next_gettime;

__attribute__((constructor)) static void load(void)
{
    const char *path = getenv("LEASEHOLD_WALLCLOCK");
    next_gettime = (gettime_fn)dlsym(RTLD_NEXT, "clock_gettime");
    if (path == NULL)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    void *map = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED)
        offset = map;
}

/* Before the constructor ran (another library's may ask first), the kernel is asked directly. */
static int true_gettime(clockid_t id, struct timespec *ts)
{
    return next_gettime != NULL ? next_gettime(id, ts) : (int)syscall(SYS_clock_gettime, id, ts);
}

static int64_t shift(void)
{
    return offset != NULL ? *offset : 0;
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
    int result = true_gettime(id, ts);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI)) {
        int64_t by = shift();
        ts->tv_sec += by / SECOND;
        ts->tv_nsec += by % SECOND;
        if (ts->tv_nsec >= SECOND) {
            ts->tv_nsec -= SECOND;
            ts->tv_sec += 1;
        } else if (ts->tv_nsec < 0) {
            ts->tv_nsec += SECOND;
            ts->tv_sec -= 1;
        }
    }
    return result;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
    struct timespec ts;
    (void)tz;
    int result = clock_gettime(CLOCK_REALTIME, &ts);
    if (result == 0) {
        tv->tv_sec = ts.tv_sec;
        tv->tv_usec = ts.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *out)
{
    struct timespec ts;
    if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
        return (time_t)-1;
    if (out != NULL)
        *out = ts.tv_sec;
    return ts.tv_sec;
}
