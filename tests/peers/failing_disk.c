/* A disk that fails when it is told to: loaded before the C library (LD_PRELOAD), it stands before the calls by which LMDB writes data.mdb.
 *
 * The file that FAILING_DISK names says what fails for as long as it is there; any of these words:
 *
 *   data         writes of pages other than the two meta pages
 *   sync         fsync, fdatasync, msync
 *   meta         writes of a meta page; LMDB makes the one that counts through a descriptor opened with O_DSYNC
 *   meta-undone  that write fails although it is made; LMDB then puts the old page back, and may
 *   meta-kept    that write fails although it is made, and LMDB may not put the old page back: the commit stands
 *   unsynced     fsync and fdatasync, once a meta page was kept
 *   full         the error is ENOSPC and not EIO
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int meta_was_kept;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* What fails now, each word between blanks; empty where nothing does. */
static void read_orders(char *orders, size_t size)
{
    const char *path = getenv("FAILING_DISK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t length = fd < 0 ? 0 : read(fd, orders + 1, size - 3);
    if (fd >= 0)
        close(fd);
    orders[0] = ' ';
    orders[1 + (length > 0 ? length : 0)] = ' ';
    orders[2 + (length > 0 ? length : 0)] = 0;
}

static int is_ordered(const char *orders, const char *what)
{
    char word[32];
    snprintf(word, sizeof word, " %s ", what);
    return strstr(orders, word) != NULL;
}

static int is_store(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    const char *name = strrchr(path, '/');
    return name && !strcmp(name, "/data.mdb");
}

static int error_of(const char *orders)
{
    return is_ordered(orders, "full") ? ENOSPC : EIO;
}

enum outcome { IS_MADE, FAILS, FAILS_THOUGH_MADE };

static enum outcome outcome_of_write(int fd, off_t offset, int *error)
{
    char orders[128];
    int saved = errno, is_meta = offset < 2 * sysconf(_SC_PAGESIZE), counts = is_meta && fcntl(fd, F_GETFL) & O_DSYNC;
    enum outcome outcome = IS_MADE;
    read_orders(orders, sizeof orders);
    if (orders[2] && is_store(fd)) {
        if (is_ordered(orders, is_meta ? "meta" : "data"))
            outcome = FAILS;
        else if (counts && (is_ordered(orders, "meta-undone") || is_ordered(orders, "meta-kept")))
            outcome = FAILS_THOUGH_MADE;
        else if (is_meta && !counts && is_ordered(orders, "meta-kept"))
            outcome = FAILS;
        if (outcome == FAILS_THOUGH_MADE && is_ordered(orders, "meta-kept"))
            meta_was_kept = 1;
    }
    *error = error_of(orders);
    errno = saved;
    return outcome;
}

static int sync_fails(int is_of_store)
{
    char orders[128];
    int saved = errno;
    read_orders(orders, sizeof orders);
    int fails = is_of_store && (is_ordered(orders, "sync") || (meta_was_kept && is_ordered(orders, "unsynced")));
    errno = fails ? error_of(orders) : saved;
    return fails;
}

#define WRITE(name, fd, offset, ...)                                                                                                       \
    do {                                                                                                                                   \
        int error;                                                                                                                         \
        enum outcome outcome = outcome_of_write(fd, offset, &error);                                                                       \
        ssize_t written = outcome == FAILS ? -1 : REAL(name)(fd, __VA_ARGS__);                                                             \
        if (outcome != IS_MADE) {                                                                                                          \
            errno = error;                                                                                                                 \
            return -1;                                                                                                                     \
        }                                                                                                                                  \
        return written;                                                                                                                    \
    } while (0)

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) { WRITE(pwrite, fd, offset, bytes, size, offset); }
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset) { WRITE(pwrite64, fd, offset, bytes, size, offset); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) { WRITE(pwritev, fd, offset, parts, count, offset); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { WRITE(pwritev64, fd, offset, parts, count, offset); }
ssize_t writev(int fd, const struct iovec *parts, int count) { WRITE(writev, fd, lseek(fd, 0, SEEK_CUR), parts, count); }
int fsync(int fd) { return sync_fails(is_store(fd)) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return sync_fails(is_store(fd)) ? -1 : REAL(fdatasync)(fd); }
int msync(void *start, size_t size, int flags) { return sync_fails(1) ? -1 : REAL(msync)(start, size, flags); }
