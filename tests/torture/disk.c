/* A disk that forgets: preloaded into a process, it notes what would be there after a power cut.
 *
 * Only fsync and fdatasync make anything durable. A synced file's content is copied to $FORGETFUL/file.<key>, a synced
 * directory's entries to $FORGETFUL/dir.<key>, where <key> is inode and time of birth, so that an inode that is used
 * again is another file. What stands there is all that a cut leaves: a file whose directory was not synced is gone, a
 * rename or removal that was not synced has not happened. While $FORGETFUL/eio exists, every sync fails with EIO.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int key(int at, const char *name, int flags, char *out, mode_t *mode) {
    struct statx found;
    if (statx(at, name, flags | AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME | STATX_TYPE, &found)) return -1;
    *mode = found.stx_mode;
    sprintf(out, "%llu-%lld.%u", (unsigned long long)found.stx_ino, (long long)found.stx_btime.tv_sec,
            found.stx_btime.tv_nsec);
    return 0;
}

/* The key of a path, for whoever builds what a cut leaves. */
int key_of(const char *path, char *out) {
    mode_t mode;
    return key(AT_FDCWD, path, 0, out, &mode);
}

static int note(int fd) {
    const char *shadow = getenv("FORGETFUL");
    char own[128], path[PATH_MAX], temporary[PATH_MAX + 64], buffer[65536];
    mode_t mode;
    if (!shadow) return 0;
    snprintf(path, sizeof path, "%s/eio", shadow);
    if (!access(path, F_OK)) { errno = EIO; return -1; }
    if (key(fd, "", AT_EMPTY_PATH, own, &mode)) return -1;
    if (!S_ISDIR(mode) && !S_ISREG(mode)) return 0;
    snprintf(path, sizeof path, "%s/%s.%s", shadow, S_ISDIR(mode) ? "dir" : "file", own);
    snprintf(temporary, sizeof temporary, "%s.%d.new", path, gettid());
    int out = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0) return -1;
    if (S_ISDIR(mode)) {
        int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *entries = again < 0 ? NULL : fdopendir(again);
        if (!entries) return -1;
        for (struct dirent *entry; (entry = readdir(entries));) {
            char other[128];
            mode_t kind;
            if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
            if (key(fd, entry->d_name, 0, other, &kind)) continue;
            dprintf(out, "%s %s %s\n", S_ISDIR(kind) ? "dir" : "file", other, entry->d_name);
        }
        closedir(entries);
    } else {
        char self[64];
        snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
        int in = open(self, O_RDONLY | O_CLOEXEC);
        if (in < 0) return -1;
        for (ssize_t count; (count = read(in, buffer, sizeof buffer)) > 0;)
            if (write(out, buffer, count) != count) return -1;
        close(in);
    }
    close(out);
    return rename(temporary, path);
}

int fsync(int fd) { return note(fd); }
int fdatasync(int fd) { return note(fd); }
