/* SPDX-License-Identifier: MIT */
/*
 * locked_file.h - files of one user in a folder that everybody may write to
 *
 * Does: Creates a file with mode 0600, and accepts one only from the same user: a regular file of the right size with
 *    one name. A process holds a shared lock while it has the file open, which Linux drops with the process. So a file
 *    that nobody has locked is left over from killed processes, and may be removed. Nothing waits for other users.
 * Threads: any.
 * Owns: nothing; the caller owns the descriptor.
 */
#ifndef OH_COMM_CORE_LOCKED_FILE_H_
#define OH_COMM_CORE_LOCKED_FILE_H_

#include <nccl.h>
#include <stddef.h>

/*
 * Opens or creates the file, allocates its `size` bytes (zeros), and locks it. Returns ncclSuccess, or ncclSystemError
 * (logged: at WARN if the file is another user's).
 */
ncclResult_t oh_locked_file_open(const char *path, size_t size, int *fd_p);

/* Removes the name, unless it belongs to another file by now, and closes (which ends the lock). */
void oh_locked_file_remove(const char *path, int fd);

/* Removes the files whose names begin with `prefix` that killed processes of this user have left in the folder. */
void oh_locked_files_sweep(const char *folder, const char *prefix, size_t size);

#endif
