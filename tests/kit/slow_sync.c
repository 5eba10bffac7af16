/* A disk on which syncs of some files are slow, for tests: loaded with LD_PRELOAD into a server.
 *
 * SLOW_SYNC_FOLDER  where files lie whose fsync and fdatasync take longer
 * SLOW_SYNC_MS      how much longer
 *
 * RocksDB makes its own system calls, so this can't be done in Python.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void wait_for_disk(int fd)
{
    const char *folder = getenv("SLOW_SYNC_FOLDER");
    const char *text = getenv("SLOW_SYNC_MS");
    char link[64], path[PATH_MAX];
    ssize_t length;
    long ms;
    struct timespec pause;

    if (folder == NULL || text == NULL)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = '\0';
    if (strncmp(path, folder, strlen(folder)) != 0)
        return;
    ms = atol(text);
    pause.tv_sec = ms / 1000;
    pause.tv_nsec = ms % 1000 * 1000000;
    nanosleep(&pause, NULL);
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
