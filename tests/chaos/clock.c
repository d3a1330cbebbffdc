/* A clock that can be stepped for one Redis server: preloaded into it, see world.py.

   The file CHAOS_CLOCKS/<name of the working directory> holds microseconds to add to the time of day.  Only servers
   are meant, so every other program that inherits the preload keeps its time. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t zero = 0;
static volatile const int64_t *added_us = &zero;

__attribute__((constructor)) static void find_clock(void) {
    char here[PATH_MAX], path[2 * PATH_MAX];
    const char *clocks = getenv("CHAOS_CLOCKS");
    if (!clocks || strcmp(program_invocation_short_name, "redis-server") || !getcwd(here, sizeof here))
        return;
    snprintf(path, sizeof path, "%s/%s", clocks, strrchr(here, '/') + 1);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        added_us = page;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t us = (int64_t)at->tv_sec * 1000000 + at->tv_nsec / 1000 + *added_us;
    at->tv_sec = us / 1000000;
    at->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
