/* SPDX-License-Identifier: MIT */
/* key_of_id.c - prints the key of the communicator with that unique id, a text, and the name that others see of it */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/shared/key.h"

int main(int argc, char **argv)
{
    ncclUniqueId id = {{0}};
    memcpy(id.internal, argv[argc - 1], strnlen(argv[argc - 1], sizeof id.internal));
    struct oh_key key = oh_key_of_ids(&id, 1), name = oh_key_name(&key);
    printf("%016" PRIx64 "%016" PRIx64 " %016" PRIx64 "%016" PRIx64 "\n", key.word[0], key.word[1], name.word[0],
           name.word[1]);
    return 0;
}
