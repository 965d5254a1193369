/* SPDX-License-Identifier: MIT */
/*
 * outfile.c - a temporary file beside the place, and a rename
 */
#include "tools/shared/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/shared/tool.h"

/* The mode that a file newly made by open would have. */
static mode_t usual_mode(void)
{
    mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

static FILE *open_temporary(struct oh_outfile *file, mode_t mode)
{
    if (snprintf(file->temporary, sizeof file->temporary, "%s.XXXXXX", file->target) >= (int)sizeof file->temporary) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    int fd = mkostemp(file->temporary, O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    fchmod(fd, mode);
    FILE *stream = fdopen(fd, "w");
    if (!stream) {
        int error = errno;
        close(fd);
        unlink(file->temporary);
        errno = error;
    }
    return stream;
}

/* A device that holds no more, as /dev/full, tells so to who writes nothing: now, and not when the work is done. */
static FILE *open_special(const char *path)
{
    FILE *stream = fopen(path, "we");
    if (stream && write(fileno(stream), "", 0) < 0) {
        int error = errno;
        fclose(stream);
        errno = error;
        return NULL;
    }
    return stream;
}

/* NULL: errno says why. */
static FILE *open_stream(struct oh_outfile *file)
{
    struct stat there;
    if (strcmp(file->path, "-") == 0) {
        return stdout;
    }
    if (stat(file->path, &there) != 0) {
        if (snprintf(file->target, sizeof file->target, "%s", file->path) >= (int)sizeof file->target) {
            errno = ENAMETOOLONG;
            return NULL;
        }
        return open_temporary(file, usual_mode());
    }
    if (!S_ISREG(there.st_mode)) {
        return open_special(file->path);
    }
    if (access(file->path, W_OK) != 0 || !realpath(file->path, file->target)) {
        return NULL; /* a rename would not ask */
    }
    return open_temporary(file, there.st_mode & 0777);
}

bool oh_outfile_open(const char *name, const char *path, struct oh_outfile *file)
{
    *file = (struct oh_outfile){.path = path};
    file->stream = open_stream(file);
    if (!file->stream) {
        oh_tool_error("%s: %s: %s", name, path, strerror(errno));
        return false;
    }
    return true;
}

void oh_outfile_write(struct oh_outfile *file, const void *data, size_t size)
{
    if (fwrite(data, 1, size, file->stream) != size && file->error == 0) {
        file->error = errno;
    }
}

const char *oh_outfile_name(const struct oh_outfile *file)
{
    return file->temporary[0] ? file->temporary : file->path;
}

bool oh_outfile_commit(const char *name, struct oh_outfile *file)
{
    FILE *stream = file->stream;
    if (!stream) {
        return true;
    }
    errno = file->error;
    bool good = !ferror(stream) && fflush(stream) == 0;
    if (file->temporary[0]) {
        good = good && fsync(fileno(stream)) == 0;
        good = fclose(stream) == 0 && good;
        good = good && rename(file->temporary, file->target) == 0;
    } else if (stream != stdout) {
        good = fclose(stream) == 0 && good;
    }
    if (!good) {
        oh_tool_error("%s: %s: %s", name, strcmp(file->path, "-") ? file->path : "stdout",
                      strerror(errno ? errno : EIO));
        if (file->temporary[0]) {
            unlink(file->temporary);
        }
    }
    file->stream = NULL;
    return good;
}

void oh_outfile_drop(struct oh_outfile *file)
{
    if (file->stream && file->stream != stdout) {
        fclose(file->stream);
        if (file->temporary[0]) {
            unlink(file->temporary);
        }
    }
    file->stream = NULL;
}
