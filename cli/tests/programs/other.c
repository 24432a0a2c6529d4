/* A setuid program: becomes the file's owner, says so by writing its pid to FILE, and sleeps a minute,
 * deaf to TERM.
 *
 * other FILE */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc != 2 || setgid(getegid()) != 0 || setuid(geteuid()) != 0)
        return 1;
    signal(SIGTERM, SIG_IGN);
    int file = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dprintf(file, "%d\n", (int)getpid());
    close(file);
    sleep(60);
    return 0;
}
