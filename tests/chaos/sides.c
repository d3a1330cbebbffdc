/* On which side of a region that is cut in two a process is: preloaded into all of its processes, see network.py.

   Every socket of a node is marked with the node's number, of the sync service with SYNC, of a Redis server with its
   port (its working directory is called so); one that is accepted has the mark of the one that listened.  Which marks
   may talk to which is said by rules of the region's network. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SYNC = 100 };
static int mark = 0;

static int has(const char *words, ssize_t length, const char *word, const char **next) {
    for (const char *at = words; at < words + length; at += strlen(at) + 1)
        if (!strcmp(at, word)) {
            *next = at + strlen(at) + 1;
            return 1;
        }
    return 0;
}

__attribute__((constructor)) static void find_mark(void) {
    char here[PATH_MAX], words[4096];
    const char *next = "";
    if (!strcmp(program_invocation_short_name, "redis-server")) {
        if (getcwd(here, sizeof here))
            mark = atoi(strrchr(here, '/') + 1);
        return;
    }
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, words, sizeof words - 1);
    if (file >= 0)
        close(file);
    if (length <= 0)
        return;
    words[length] = 0;
    if (has(words, length, "services.sync_service", &next))
        mark = SYNC;
    else if (has(words, length, "services.check_api", &next) && has(words, length, "--node", &next))
        mark = atoi(next);
}

int socket(int family, int type, int protocol) {
    static int (*real)(int, int, int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "socket");
    int made = real(family, type, protocol), before = errno;
    if (made >= 0 && mark && (family == AF_INET || family == AF_INET6))
        setsockopt(made, SOL_SOCKET, SO_MARK, &mark, sizeof mark);
    errno = before;
    return made;
}
