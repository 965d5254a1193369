/* SPDX-License-Identifier: MIT */
/* id_file.h - a communicator's unique id goes from rank 0 to the other ranks by a file */
#ifndef TEST_E2E_ID_FILE_H_
#define TEST_E2E_ID_FILE_H_

#include <nccl.h>
#include <stdbool.h>

/* Makes the file, which is there whole or not at all. */
bool id_publish(const char *path, const ncclUniqueId *id);

/* Waits up to 20 seconds for it. */
bool id_fetch(const char *path, ncclUniqueId *id_p);

#endif
