/* A storm: CHAINS lines of processes, each of which forks one successor, leaves its session and ends.
 * Deaf to TERM. Each line writes the boot clock (milliseconds) and its generation to LOG every 20 ms.
 * Ends by itself after SECONDS, so that a test that fails leaves nothing for ever.
 *
 * storm CHAINS SECONDS LOG */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void line(int log, long end)
{
    long told = 0;
    for (long generation = 0; now_ms() < end; generation++) {
        pid_t successor = fork();
        if (successor != 0)
            _exit(successor < 0);
        setsid();
        /* Enough to outrun a walk over all processes, too little to use up a machine's process ids. */
        nanosleep(&(struct timespec){ .tv_nsec = 4000000 }, NULL);
        long now = now_ms();
        if (now - told >= 20) {
            char text[64];
            int length = snprintf(text, sizeof text, "%ld %ld\n", now, generation);
            told = now;
            if (write(log, text, length) != length)
                _exit(1);
        }
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 64;
    long end = now_ms() + 1000 * atol(argv[2]);
    int log = open(argv[3], O_WRONLY | O_CREAT | O_APPEND, 0644);
    signal(SIGTERM, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    for (int i = atoi(argv[1]); i > 0; i--)
        if (fork() == 0)
            line(log, end);
    while (now_ms() < end)
        pause();
    return 0;
}
