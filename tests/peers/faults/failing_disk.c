/* Simulates a failing disk. Loaded with LD_PRELOAD, it intercepts the calls that write the files of
 * an embedded store: LMDB's data.mdb and the segments of the journal, whose names are numbers.
 *
 * While the file named by FAILING_DISK exists, its words say what fails:
 *
 *   data         writes of the journal, and of LMDB's pages other than the two meta pages
 *   sync         fsync, fdatasync, msync
 *   meta         writes of a meta page; LMDB commits through a descriptor opened with O_DSYNC
 *   meta-undone  the committing write takes effect but returns an error; LMDB restores the old page
 *   meta-kept    the first such write takes effect but returns an error, and restoring the old page
 *                fails: the commit is effective
 *   unsynced     fsync and fdatasync, once a meta page was kept
 *   full         the error is ENOSPC instead of EIO
 *
 * The folder named by POWER_CUT, if any, receives what the files would contain after a power cut:
 * writes with O_DSYNC at once, other writes and truncations when they are synced. Data written
 * before a failed sync, or by a failed write, never reaches it: Linux then considers the pages
 * clean, and the next sync skips them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* Since `meta-kept` was requested. */
static int meta_was_kept;

/* Written, or cut off behind the offset, but not synced, in this order. `number` is the number of
 * such operations before it. A store writes and syncs in several threads. */
static struct range {
    char name[64];
    off_t offset;
    size_t size;
    int is_cut;
    long number;
} *unsynced;
static size_t unsynced_count;
static long operations;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* What fails now, each word between spaces; empty if nothing fails. */
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

/* The name of a file of the store; empty for others. */
static void find_name(int fd, char *found, size_t size)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    const char *name = strrchr(path, '/');
    int is_segment = name && strstr(path, "/journal/") && strspn(name + 1, "0123456789") == 16;
    snprintf(found, size, "%s", name && (is_segment || !strcmp(name, "/data.mdb")) ? name + 1 : "");
}

static int is_store(int fd)
{
    char name[64];
    find_name(fd, name, sizeof name);
    return name[0] != 0;
}

static int is_lmdb(int fd)
{
    char name[64];
    find_name(fd, name, sizeof name);
    return !strcmp(name, "data.mdb");
}

static int error_of(const char *orders)
{
    return is_ordered(orders, "full") ? ENOSPC : EIO;
}

static void put_into_medium(int fd, off_t offset, size_t size)
{
    char link[64], name[64], path[4096], *bytes = malloc(size);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    find_name(fd, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", getenv("POWER_CUT"), name);
    /* The descriptor itself may be write-only. */
    int readable = open(link, O_RDONLY | O_CLOEXEC);
    int medium = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (medium < 0 || !bytes || readable < 0 ||
        pread(readable, bytes, size, offset) != (ssize_t)size ||
        REAL(pwrite)(medium, bytes, size, offset) != (ssize_t)size)
        abort();
    close(readable);
    close(medium);
    free(bytes);
}

static void cut_medium(const char *name, off_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("POWER_CUT"), name);
    int medium = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (medium < 0 || REAL(ftruncate)(medium, size))
        abort();
    close(medium);
}

static void add_unsynced(int fd, off_t offset, size_t size, int is_cut)
{
    unsynced = realloc(unsynced, (unsynced_count + 1) * sizeof *unsynced);
    if (!unsynced)
        abort();
    struct range *added = &unsynced[unsynced_count++];
    find_name(fd, added->name, sizeof added->name);
    added->offset = offset;
    added->size = size;
    added->is_cut = is_cut;
    added->number = operations++;
}

static void note_write(int fd, off_t offset, size_t size)
{
    if (!getenv("POWER_CUT") || !is_store(fd))
        return;
    pthread_mutex_lock(&lock);
    if (fcntl(fd, F_GETFL) & O_DSYNC)
        put_into_medium(fd, offset, size);
    else
        add_unsynced(fd, offset, size, 0);
    pthread_mutex_unlock(&lock);
}

static void note_truncation(int fd, off_t size)
{
    if (!getenv("POWER_CUT") || !is_store(fd))
        return;
    char name[64];
    find_name(fd, name, sizeof name);
    pthread_mutex_lock(&lock);
    for (size_t n = 0; n < unsynced_count; n++) {
        struct range *one = &unsynced[n];
        if (!strcmp(one->name, name) && one->offset + (off_t)one->size > size)
            one->size = one->offset < size ? size - one->offset : 0;
    }
    add_unsynced(fd, size, 0, 1);
    pthread_mutex_unlock(&lock);
}

static long operations_so_far(void)
{
    pthread_mutex_lock(&lock);
    long found = operations;
    pthread_mutex_unlock(&lock);
    return found;
}

/* The sync began after `before` operations; it need not include later ones. */
static void note_sync(int fd, int is_done, long before)
{
    if (!getenv("POWER_CUT") || !is_store(fd))
        return;
    char name[64];
    size_t kept = 0;
    find_name(fd, name, sizeof name);
    pthread_mutex_lock(&lock);
    for (size_t n = 0; n < unsynced_count; n++)
        if (strcmp(unsynced[n].name, name) || unsynced[n].number >= before)
            unsynced[kept++] = unsynced[n];
        else if (is_done && unsynced[n].is_cut)
            cut_medium(name, unsynced[n].offset);
        else if (is_done)
            put_into_medium(fd, unsynced[n].offset, unsynced[n].size);
    unsynced_count = kept;
    pthread_mutex_unlock(&lock);
}

enum outcome { IS_MADE, FAILS, FAILS_THOUGH_MADE };

static enum outcome outcome_of_write(int fd, off_t offset, int *error)
{
    char orders[128];
    int saved = errno, is_meta = is_lmdb(fd) && offset < 2 * sysconf(_SC_PAGESIZE),
        counts = is_meta && fcntl(fd, F_GETFL) & O_DSYNC;
    enum outcome outcome = IS_MADE;
    read_orders(orders, sizeof orders);
    if (orders[2] && is_store(fd)) {
        if (is_ordered(orders, is_meta ? "meta" : "data"))
            outcome = FAILS;
        else if (counts && is_ordered(orders, "meta-undone"))
            outcome = FAILS_THOUGH_MADE;
        else if (is_meta && is_ordered(orders, "meta-kept")) {
            outcome = !counts ? FAILS : meta_was_kept ? IS_MADE : FAILS_THOUGH_MADE;
            meta_was_kept = 1;
        }
    } else if (!orders[2])
        meta_was_kept = 0;
    *error = error_of(orders);
    errno = saved;
    return outcome;
}

static int sync_fails(int is_of_store)
{
    char orders[128];
    int saved = errno;
    read_orders(orders, sizeof orders);
    int fails = is_of_store &&
                (is_ordered(orders, "sync") || (meta_was_kept && is_ordered(orders, "unsynced")));
    errno = fails ? error_of(orders) : saved;
    return fails;
}

#define WRITE(name, fd, offset, ...) \
    do { \
        off_t at = offset; \
        int error; \
        enum outcome outcome = outcome_of_write(fd, at, &error); \
        ssize_t written = outcome == FAILS ? -1 : REAL(name)(fd, __VA_ARGS__); \
        if (outcome != IS_MADE) { \
            errno = error; \
            return -1; \
        } \
        if (written > 0) \
            note_write(fd, at, written); \
        return written; \
    } while (0)

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    WRITE(pwrite, fd, offset, bytes, size, offset);
}
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset)
{
    WRITE(pwrite64, fd, offset, bytes, size, offset);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    WRITE(pwritev, fd, offset, parts, count, offset);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset)
{
    WRITE(pwritev64, fd, offset, parts, count, offset);
}
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    WRITE(pwritev2, fd, offset, parts, count, offset, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
{
    WRITE(pwritev64v2, fd, offset, parts, count, offset, flags);
}
ssize_t writev(int fd, const struct iovec *parts, int count)
{
    WRITE(writev, fd, lseek(fd, 0, SEEK_CUR), parts, count);
}

#define TRUNCATE(name, fd, size) \
    do { \
        int result = REAL(name)(fd, size), saved = errno; \
        if (!result) \
            note_truncation(fd, size); \
        errno = saved; \
        return result; \
    } while (0)

int ftruncate(int fd, off_t size) { TRUNCATE(ftruncate, fd, size); }
int ftruncate64(int fd, off64_t size) { TRUNCATE(ftruncate64, fd, size); }

#define SYNC(name, fd) \
    do { \
        long before = operations_so_far(); \
        int fails = sync_fails(is_store(fd)), result = fails ? -1 : REAL(name)(fd), saved = errno; \
        note_sync(fd, result == 0, before); \
        errno = saved; \
        return result; \
    } while (0)

int fsync(int fd) { SYNC(fsync, fd); }
int fdatasync(int fd) { SYNC(fdatasync, fd); }
int msync(void *start, size_t size, int flags)
{
    return sync_fails(1) ? -1 : REAL(msync)(start, size, flags);
}
