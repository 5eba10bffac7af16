/* A disk on which syncs of some files are slow, for tests: loaded with LD_PRELOAD into a server.
 *
 * SLOW_SYNC_FOLDER  where files lie whose fsync and fdatasync take longer
 * SLOW_SYNC_MS      how much longer
 * SLOW_SYNC_GATE    a file: as long as it is there they take longer still; its name with ".held" is made when one waits
 *
 * RocksDB makes its own system calls, so this can't be done in Python.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void pause_ms(long ms)
{
    struct timespec pause;

    pause.tv_sec = ms / 1000;
    pause.tv_nsec = ms % 1000 * 1000000;
    nanosleep(&pause, NULL);
}

static void wait_at_gate(const char *gate)
{
    char held[PATH_MAX];

    if (access(gate, F_OK) != 0)
        return;
    snprintf(held, sizeof held, "%s.held", gate);
    close(open(held, O_CREAT | O_WRONLY, 0600));
    while (access(gate, F_OK) == 0)
        pause_ms(5);
}

static void wait_for_disk(int fd)
{
    const char *folder = getenv("SLOW_SYNC_FOLDER");
    const char *text = getenv("SLOW_SYNC_MS");
    const char *gate = getenv("SLOW_SYNC_GATE");
    char link[64], path[PATH_MAX];
    ssize_t length;

    if (folder == NULL)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = '\0';
    if (strncmp(path, folder, strlen(folder)) != 0)
        return;
    if (text != NULL)
        pause_ms(atol(text));
    if (gate != NULL)
        wait_at_gate(gate);
}

int fsync(int fd)
{
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_disk(fd);
    return next(fd);
}

int fdatasync(int fd)
{
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk(fd);
    return next(fd);
}
