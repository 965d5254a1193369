/* SPDX-License-Identifier: MIT */
/*
 * t_retire.c - the end of a process forked while the reaper was at work
 *
 * The child inherits the exit handler and the mutex as it was, perhaps locked by a thread that it does not have. It
 * must end all the same. Includes the source, to hold its mutex.
 */
#include "test/tap.h"

#include "comm/retire.c"

#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    int status = 0;
    pthread_once(&prepared, prepare_once);
    pthread_mutex_lock(&mutex);
    running = true;
    pid_t child = fork();
    if (child == 0) {
        alarm(5); /* a child that waits for the mutex ends by this signal */
        exit(0);
    }
    running = false;
    pthread_mutex_unlock(&mutex);
    bool waited = child > 0 && waitpid(child, &status, 0) == child;
    tap_ok(waited && WIFEXITED(status) && WEXITSTATUS(status) == 0,
           "a child forked while the mutex was held ends, wait status %d", status);
    return tap_done();
}
