/* SPDX-License-Identifier: MIT */
/*
 * outfile.c - a temporary file beside the place, and a rename
 */
#include "tools/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/tool.h"

static bool open_temporary(struct oh_outfile *file)
{
    mode_t mask = umask(0);
    umask(mask);
    if (snprintf(file->temporary, sizeof file->temporary, "%s.XXXXXX", file->path) >= (int)sizeof file->temporary) {
        errno = ENAMETOOLONG;
        return false;
    }
    int fd = mkostemp(file->temporary, O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    fchmod(fd, 0666 & ~mask); /* as open would have made it */
    file->stream = fdopen(fd, "w");
    return true;
}

bool oh_outfile_open(const char *name, const char *path, struct oh_outfile *file_p)
{
    struct stat there;
    struct oh_outfile file = {.path = path};
    bool open = true;
    if (strcmp(path, "-") == 0) {
        file.stream = stdout;
    } else if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) {
        file.stream = fopen(path, "we");
    } else if (access(path, F_OK) == 0 && access(path, W_OK) != 0) {
        open = false; /* a rename would not ask */
    } else {
        open = open_temporary(&file);
    }
    if (!open || !file.stream) {
        oh_tool_error("%s: %s: %s", name, path, strerror(errno));
        return false;
    }
    *file_p = file;
    return true;
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
    errno = 0;
    bool good = fflush(stream) == 0 && !ferror(stream);
    if (file->temporary[0]) {
        good = good && fsync(fileno(stream)) == 0;
        good = fclose(stream) == 0 && good;
        good = good && rename(file->temporary, file->path) == 0;
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
