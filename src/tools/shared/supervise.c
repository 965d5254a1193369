/* SPDX-License-Identifier: MIT */
/*
 * supervise.c - a child with our signals and our end
 *
 * Does: Blocks signals and takes them one by one, so there is no handler and no race. A signal of the terminal (its
 *    si_code is the kernel's) reaches the whole foreground group, so the child too, and is not passed on; but its
 *    hang-up reaches the leader of the session alone. A signal that a process sends to the group reaches the child
 *    twice: the two cases cannot be told apart.
 * Threads: one.
 * Owns: the child.
 */
#include "tools/shared/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/shared/outfile.h"
#include "tools/shared/tool.h"

static int not_started_exit = OH_EXIT_FAILED;

/* What the program must find as this process found it. */
static sigset_t mask;
static struct sigaction child_action; /* with SIGCHLD ignored a child's status could not be had */

/* In the child. The pipe closes by itself when the program is executed; otherwise the exit status goes through it. */
static void become(char **argv, pid_t parent, int report)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) {
        sigaction(SIGCHLD, &child_action, NULL);
        sigprocmask(SIG_SETMASK, &mask, NULL);
        int status = oh_tool_exec(argv);
        ssize_t written = write(report, &status, sizeof status);
        (void)written;
    }
    _exit(OH_EXIT_FAILED);
}

/* The terminal has not sent the same signal to the child. */
static bool is_ours_alone(const siginfo_t *info)
{
    return info->si_code != SI_KERNEL || (info->si_signo == SIGHUP && getsid(0) == getpid());
}

/* Passes signals on until the program has ended; reaps all children. Returns the program's wait status. */
static int watch(pid_t program, const sigset_t *set, void (*look)(void *), void *user)
{
    static const struct timespec half_second = {0, 500000000};
    for (;;) {
        int status;
        siginfo_t info;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
            if (pid == program) {
                return status;
            }
        }
        if (look) {
            look(user);
        }
        int number = sigtimedwait(set, &info, &half_second);
        if (number > 0 && number != SIGCHLD && is_ours_alone(&info)) {
            kill(program, number);
        }
    }
}

/* Waits until the program is executed. True, or false with the exit status that says why not. */
static bool was_executed(int report)
{
    return TEMP_FAILURE_RETRY(read(report, &not_started_exit, sizeof not_started_exit)) != sizeof not_started_exit;
}

int oh_supervise(char **argv, void (*look)(void *), void *user)
{
    static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD};
    static const struct sigaction standard = {.sa_handler = SIG_DFL};
    static const struct timespec now = {0, 0};
    sigset_t set;
    int report[2], status = OH_SUPERVISE_NOT_STARTED;
    pid_t parent = getpid();
    if (pipe2(report, O_CLOEXEC) != 0) {
        oh_tool_error("pipe: %m");
        return OH_SUPERVISE_NOT_STARTED;
    }
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        sigaddset(&set, signals[i]);
    }
    sigaction(SIGCHLD, &standard, &child_action);
    sigprocmask(SIG_BLOCK, &set, &mask);
    pid_t program = fork();
    if (program == 0) {
        become(argv, parent, report[1]);
    }
    close(report[1]);
    if (program < 0) {
        oh_tool_error("fork: %m");
    } else if (was_executed(report[0])) {
        status = watch(program, &set, look, user);
    } else {
        waitpid(program, NULL, 0);
    }
    close(report[0]);
    /* What is left was meant for a program that has ended. The caller has yet to say what it did. */
    while (sigtimedwait(&set, NULL, &now) > 0) {
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
    return status;
}

int oh_supervise_end(int status)
{
    if (status == OH_SUPERVISE_NOT_STARTED) {
        return not_started_exit;
    }
    if (WIFSIGNALED(status)) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none); /* the program has left its own */
        oh_signals_end_by(WTERMSIG(status));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : OH_EXIT_FAILED;
}
