/* Simulates a disk that hangs. Loaded with LD_PRELOAD, it intercepts writes to the files of the
 * traffic log that are being written. While the file named by HANGING_DISK exists, such a write
 * blocks.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_growing(int fd)
{
    static const char ending[] = ".jsonl";
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < (ssize_t)sizeof ending)
        return 0;
    path[length] = 0;
    return !strcmp(path + length - (sizeof ending - 1), ending);
}

ssize_t write(int fd, const void *bytes, size_t size)
{
    int saved = errno;
    const char *orders = getenv("HANGING_DISK");
    while (orders && !access(orders, F_OK) && is_growing(fd))
        usleep(20000);
    errno = saved;
    return ((__typeof__(&write))dlsym(RTLD_NEXT, "write"))(fd, bytes, size);
}
