/* SPDX-License-Identifier: MIT */
/* key_of_id.c - prints two hashes of a unique id, a text: the communicator's key, and what names its file */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/shared/key.h"

int main(int argc, char **argv)
{
    ncclUniqueId id = {{0}};
    if (argc != 2) {
        return 2;
    }
    memcpy(id.internal, argv[1], strnlen(argv[1], sizeof id.internal));
    struct oh_key key = oh_key_of_ids(&id, 1), name = oh_key_name(&key);
    printf("%016" PRIx64 "%016" PRIx64 " %016" PRIx64 "%016" PRIx64 "\n", key.word[0], key.word[1], name.word[0],
           name.word[1]);
    return 0;
}
