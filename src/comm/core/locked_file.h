/* SPDX-License-Identifier: MIT */
/*
 * locked_file.h - files of one user in a folder that everybody may write to
 *
 * A file is made with mode 0600 and accepted only from the same user: of the right kind and size, with one name. As
 * long as a process has it open it holds a shared lock, which the kernel drops with the process, however that ends. So
 * a file that nobody has locked was left by processes that were killed, and may be removed. Nothing here waits for
 * other users: whatever they put under a name costs the caller that name, and nothing else. Thread-safe.
 */
#ifndef OH_COMM_CORE_LOCKED_FILE_H_
#define OH_COMM_CORE_LOCKED_FILE_H_

#include <nccl.h>
#include <stddef.h>

/*
 * Opens the file, makes it if there is none, gives it `size` bytes of memory, and locks it. Whoever comes first, all
 * see zeros. Returns ncclSuccess, or ncclSystemError, logged: at WARN where someone else's file is in the way.
 */
ncclResult_t oh_locked_file_open(const char *path, size_t size, int *fd_p);

/* Removes the name, unless it belongs to another file by now, and closes (which ends the lock). */
void oh_locked_file_remove(const char *path, int fd);

/* Removes the files whose names begin with `prefix` that killed processes of this user have left in the folder. */
void oh_locked_files_sweep(const char *folder, const char *prefix, size_t size);

#endif
