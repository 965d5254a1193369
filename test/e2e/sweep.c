/* SPDX-License-Identifier: MIT */
/*
 * sweep.c - see sweep.h; lists the points, runs each in a job of its own, and judges what became of the job
 *
 *   LD_PRELOAD=libonehop.so sweep --scratch FOLDER [--points all|N] [--seed S] [--jobs N] [--only PATTERN,...]
 *   LD_PRELOAD=libonehop.so sweep --scratch FOLDER --point PATTERN:ACT:stops|on:FUNCTION:N
 *
 * A run without a fault lists the functions of the driver that the library calls in one rank after its set-up. A point
 * is the n-th call of one of them, in one pattern of calls, with one act. Of --points N, each function of each pattern
 * fails once, and the rest is drawn. Exit status: 0 when every point was judged good.
 */
#include "sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_JOBS 32
#define MAX_POINTS 65536
#define VICTIM 1
#define STOP_S 0.5
#define LIMIT_S 60.0 /* of a job */
#define PATH 512

static const char *const pattern_names[SWEEP_PATTERNS] = {"eager", "streams", "graph", "mixed",  "group",
                                                          "parts", "two",     "nccl",  "threads"};
static const char *const act_names[SWEEP_ACTS] = {"fail", "kill", "stop", "quit"};
static const char *const act_variables[SWEEP_ACTS] = {"SIMNODE_FAIL", "SIMNODE_KILL", "SIMNODE_STOP", "SIMNODE_QUIT"};

enum verdict {
    RIGHT,
    TOLD,
    WAITS,
    SILENT, /* from here on: a defect */
    UNTOLD,
    FORGOTTEN,
    ALARM,
    LEAK,
    CRASH,
    HANG,
    VERDICTS
};
static const char *const verdict_names[VERDICTS] = {
    "right", "told", "waits and is told", "silent", "untold", "forgotten", "false alarm", "leak", "crash", "hang"};

/* A job under way. */
struct job {
    const struct sweep_point *point; /* NULL: this place is free */
    struct sweep_board *board;
    int processes;
    pid_t pid[SWEEP_MAX_RANKS];
    bool running[SWEEP_MAX_RANKS], crashed;
    double begun, stopped; /* stopped: when the victim was, 0: it is not */
    char folder[PATH];     /* of the library's names */
    char out[PATH];
};

static char scratch[PATH - 64];
static struct sweep_point points[MAX_POINTS];
static size_t point_count;
static struct job jobs[MAX_JOBS];
static size_t counts[VERDICTS];

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void quit(const char *what)
{
    fprintf(stderr, "sweep: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* --- a job -------------------------------------------------------------------------------------------------------- */

static bool has_threads(const struct sweep_point *point)
{
    return point->pattern == SWEEP_THREADS;
}

struct thread {
    const struct sweep_point *point;
    struct sweep_board *board;
    int rank;
};

static void *run_thread(void *argument)
{
    const struct thread *thread = argument;
    sweep_rank(thread->point, thread->board, thread->rank);
    return NULL;
}

static void run_threads(const struct job *job)
{
    struct thread second = {job->point, job->board, 1};
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_thread, &second) != 0) {
        _exit(2);
    }
    sweep_rank(job->point, job->board, 0);
    pthread_join(thread, NULL);
}

static void set_environment(const struct job *job, int process, const char *trace)
{
    const struct sweep_point *point = job->point;
    char text[PATH + 16];
    setenv("ONEHOP_SHM_DIR", job->folder, 1);
    snprintf(text, sizeof text, "%s.report", job->out);
    setenv("SIMNODE_REPORT", text, 1);
    if (point->pattern == SWEEP_PARTS) {
        setenv("ONEHOP_ALGO", "twoshot", 1);
    }
    if (point->pattern == SWEEP_NCCL) {
        setenv("ONEHOP_MAX_BYTES", "8K", 1);
    }
    if (process != VICTIM && !has_threads(point)) {
        return;
    }
    setenv("SIMNODE_CALLER", "libonehop.so", 1);
    setenv("SIMNODE_FROM", "cuProfilerStart", 1);
    if (trace) {
        setenv("SIMNODE_TRACE", trace, 1);
    } else {
        snprintf(text, sizeof text, "%s:%u", point->function, point->nth);
        setenv(act_variables[point->act], text, 1);
    }
}

static void run_process(const struct job *job, int process, const char *trace)
{
    int out = open(job->out, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) {
        _exit(2);
    }
    set_environment(job, process, trace);
    if (has_threads(job->point)) {
        run_threads(job);
    } else {
        sweep_rank(job->point, job->board, process);
    }
    exit(0); /* not _exit: the library and the simulated libraries end as in any program */
}

static void start(struct job *job, const struct sweep_point *point, const char *trace)
{
    memset(job->board, 0, sizeof *job->board);
    unlink(job->out);
    job->point = point;
    job->processes = has_threads(point) ? 1 : sweep_ranks(point->pattern);
    job->begun = now();
    job->stopped = 0;
    job->crashed = false;
    for (int p = 0; p < job->processes; p++) {
        job->pid[p] = fork();
        if (job->pid[p] < 0) {
            quit("fork");
        }
        if (job->pid[p] == 0) {
            run_process(job, p, trace);
        }
        job->running[p] = true;
    }
}

static bool is_meant(const struct job *job, int process, int status)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return true;
    }
    return job->point->act == SWEEP_KILL && process == VICTIM && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/* Looks at the processes of a job; true: all have ended. */
static bool has_ended(struct job *job)
{
    bool ended = true;
    for (int p = 0; p < job->processes; p++) {
        int status;
        if (job->running[p] && waitpid(job->pid[p], &status, WNOHANG | WUNTRACED) == job->pid[p]) {
            if (WIFSTOPPED(status)) {
                job->stopped = now();
            } else {
                job->running[p] = false;
                job->crashed |= !is_meant(job, p, status);
            }
        }
        ended &= !job->running[p];
    }
    if (job->stopped > 0 && now() - job->stopped > STOP_S) {
        kill(job->pid[has_threads(job->point) ? 0 : VICTIM], SIGCONT); /* once: a leak checker stops its threads, too */
        job->stopped = 0;
    }
    return ended;
}

static void kill_job(struct job *job)
{
    for (int p = 0; p < job->processes; p++) {
        if (job->running[p]) {
            kill(job->pid[p], SIGKILL);
            waitpid(job->pid[p], NULL, 0);
        }
    }
}

/* --- judgement ---------------------------------------------------------------------------------------------------- */

/* What the simulated libraries count at the end of a process that has cleaned up. */
static bool report_has_leaks(const struct job *job, pid_t pid, char *what_p, size_t room)
{
    static const char *const things[] = {"mem_live_bytes", "host_live", "ipc_open", "streams_live", "events_live"};
    char path[PATH + 32], name[64];
    long number;
    bool leaks = false;
    snprintf(path, sizeof path, "%s.report.%d", job->out, (int)pid);
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%63s %ld%*[^\n]", name, &number) >= 1) {
        for (size_t t = 0; t < sizeof things / sizeof *things; t++) {
            if (strcmp(name, things[t]) == 0 && number != 0) {
                snprintf(what_p, room, "%s %ld", name, number);
                leaks = true;
            }
        }
    }
    if (file) {
        fclose(file);
        unlink(path);
    }
    return leaks;
}

/* Names that are left in the library's folder; they are removed, so that the next job finds none. */
static bool folder_has_names(const struct job *job)
{
    bool found = false;
    DIR *folder = opendir(job->folder);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        if (entry->d_name[0] != '.') {
            found = true;
            unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    if (folder) {
        closedir(folder);
    }
    return found;
}

static bool finds_leaks(const struct job *job, char *what_p, size_t room)
{
    bool leaks = false;
    for (int r = 0; r < sweep_ranks(job->point->pattern); r++) {
        const struct sweep_record *record = &job->board->rank[r];
        if (atomic_load(&record->finished) && atomic_load(&record->leaks)) {
            snprintf(what_p, room, "memory of rank %d", r);
            leaks = true;
        }
    }
    for (int p = 0; p < job->processes; p++) {
        bool finished = atomic_load(&job->board->rank[p].finished);
        leaks |= report_has_leaks(job, job->pid[p], what_p, room) && finished;
    }
    if (folder_has_names(job)) {
        snprintf(what_p, room, "a name");
        leaks = true;
    }
    return leaks;
}

/* An error that no rank should have got. */
static bool is_alarm(const struct job *job)
{
    bool told = false, errors = false, after_all = false;
    for (int r = 0; r < sweep_ranks(job->point->pattern); r++) {
        const struct sweep_record *record = &job->board->rank[r];
        bool late = atomic_load(&record->late), here = atomic_load(&record->told) || atomic_load(&record->waited);
        told |= atomic_load(&record->told);
        errors |= here || late;
        after_all |= late && !here;
    }
    switch (job->point->act) {
    case SWEEP_STOP:
        return errors;
    case SWEEP_FAIL: /* the rank whose call failed must know */
        return errors && !told;
    default: /* a peer that has ended is missed by calls alone */
        return after_all;
    }
}

static enum verdict judge(const struct job *job, bool hangs, char *what_p, size_t room)
{
    bool silent = false, untold = false, forgotten = false, told = false, waited = false;
    for (int r = 0; r < sweep_ranks(job->point->pattern); r++) {
        const struct sweep_record *record = &job->board->rank[r];
        silent |= atomic_load(&record->silent);
        untold |= atomic_load(&record->untold);
        forgotten |= atomic_load(&record->forgotten);
        told |= atomic_load(&record->told);
        waited |= atomic_load(&record->waited);
    }
    bool leaks = finds_leaks(job, what_p, room);
    return hangs           ? HANG
           : job->crashed  ? CRASH
           : silent        ? SILENT
           : untold        ? UNTOLD
           : forgotten     ? FORGOTTEN
           : is_alarm(job) ? ALARM
           : leaks         ? LEAK
           : waited        ? WAITS
           : told          ? TOLD
                           : RIGHT;
}

static void print_point(FILE *file, const struct sweep_point *point)
{
    fprintf(file, "%s:%s:%s:%s:%u", pattern_names[point->pattern], act_names[point->act], point->stops ? "stops" : "on",
            point->function, point->nth);
}

static void print_tail(const struct job *job)
{
    char line[1024];
    FILE *file = fopen(job->out, "r");
    while (file && fgets(line, sizeof line, file)) {
        printf("#     %s", line);
    }
    if (file) {
        fclose(file);
    }
}

static void finish(struct job *job, bool hangs)
{
    char what[128] = "";
    if (hangs) {
        kill_job(job);
    }
    enum verdict verdict = judge(job, hangs, what, sizeof what);
    counts[verdict]++;
    if (verdict >= SILENT) {
        printf("# %s%s%s: ", verdict_names[verdict], what[0] ? ", left: " : "", what);
        print_point(stdout, job->point);
        printf("\n");
        if (counts[verdict] <= 2) {
            print_tail(job);
        }
        fflush(stdout);
    }
    job->point = NULL;
}

/* --- all jobs ----------------------------------------------------------------------------------------------------- */

static void run_all(int places)
{
    size_t next = 0, done = 0;
    while (done < point_count) {
        for (int j = 0; j < places; j++) {
            struct job *job = &jobs[j];
            bool hangs = job->point && now() - job->begun > LIMIT_S;
            if (job->point && (has_ended(job) || hangs)) {
                finish(job, hangs);
                if (++done % 250 == 0) {
                    printf("# %zu of %zu points\n", done, point_count);
                    fflush(stdout);
                }
            }
            if (!job->point && next < point_count) {
                start(job, &points[next++], NULL);
            }
        }
        usleep(1000);
    }
}

static void prepare_jobs(int places)
{
    for (int j = 0; j < places; j++) {
        struct job *job = &jobs[j];
        job->board = mmap(NULL, sizeof *job->board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        snprintf(job->out, sizeof job->out, "%s/out.%d", scratch, j);
        snprintf(job->folder, sizeof job->folder, "%s/names.%d", scratch, j);
        if (job->board == MAP_FAILED || (mkdir(job->folder, 0700) != 0 && errno != EEXIST)) {
            quit(job->folder);
        }
    }
}

/* --- points ------------------------------------------------------------------------------------------------------- */

struct function {
    char name[SWEEP_NAME];
    unsigned calls;
};

/* Functions of a pattern, as a run without faults calls them. */
static size_t list_functions(enum sweep_pattern pattern, struct function *functions, size_t room)
{
    struct sweep_point point = {.pattern = pattern};
    char path[PATH], name[SWEEP_NAME], what[128] = "";
    size_t count = 0;
    snprintf(path, sizeof path, "%s/trace", scratch);
    unlink(path);
    start(&jobs[0], &point, path);
    while (!has_ended(&jobs[0])) {
        usleep(1000);
    }
    enum verdict verdict = judge(&jobs[0], false, what, sizeof what);
    if (verdict != RIGHT) {
        printf("# %s, without a fault: %s %s\n", pattern_names[pattern], verdict_names[verdict], what);
        print_tail(&jobs[0]);
        exit(1);
    }
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%63s", name) == 1) {
        size_t f = 0;
        while (f < count && strcmp(functions[f].name, name) != 0) {
            f++;
        }
        if (f == count && count < room) {
            functions[count++] = (struct function){.calls = 0};
            memcpy(functions[f].name, name, sizeof name);
        }
        functions[f].calls += f < count;
    }
    if (file) {
        fclose(file);
    }
    jobs[0].point = NULL;
    return count;
}

static unsigned draw(unsigned *seed, unsigned below)
{
    return (unsigned)(((uint64_t)(unsigned)rand_r(seed) * below) >> 31);
}

static void add(enum sweep_pattern pattern, enum sweep_act act, bool stops, const struct function *function,
                unsigned nth)
{
    struct sweep_point *point = &points[point_count];
    if (point_count == MAX_POINTS) {
        return;
    }
    *point = (struct sweep_point){.pattern = pattern, .act = act, .stops = stops, .nth = nth};
    memcpy(point->function, function->name, sizeof point->function);
    point_count++;
}

/* Where ranks are threads, one that ends takes all with it. */
static bool makes_sense(enum sweep_pattern pattern, enum sweep_act act)
{
    return pattern != SWEEP_THREADS || act == SWEEP_FAIL || act == SWEEP_STOP;
}

/* All points of a pattern; in front, `firsts` of them: each function fails once. Returns how many are in front. */
static size_t add_pattern(enum sweep_pattern pattern, unsigned *seed, bool firsts)
{
    struct function functions[64];
    size_t count = list_functions(pattern, functions, 64), begin = point_count;
    for (size_t f = 0; f < count; f++) {
        if (firsts) {
            add(pattern, SWEEP_FAIL, draw(seed, 2) != 0, &functions[f], 1 + draw(seed, functions[f].calls));
            continue;
        }
        for (int act = 0; act < SWEEP_ACTS; act++) {
            for (unsigned n = 1; n <= functions[f].calls && makes_sense(pattern, (enum sweep_act)act); n++) {
                add(pattern, (enum sweep_act)act, false, &functions[f], n);
                add(pattern, (enum sweep_act)act, true, &functions[f], n);
            }
        }
    }
    return point_count - begin;
}

/* `wanted` of the points, drawn; the first `kept` stay. */
static void thin(size_t kept, size_t wanted, unsigned *seed)
{
    for (size_t i = kept; i < wanted && i < point_count; i++) {
        size_t other = i + draw(seed, (unsigned)(point_count - i));
        struct sweep_point point = points[i];
        points[i] = points[other];
        points[other] = point;
    }
    point_count = wanted < point_count ? wanted : point_count;
}

static bool is_wanted(const char *only, const char *name)
{
    const char *at = only ? strstr(only, name) : name;
    return at && (!only || at[strlen(name)] == '\0' || at[strlen(name)] == ',');
}

static size_t make_points(const char *only, size_t wanted, unsigned *seed)
{
    size_t kept = 0;
    for (int firsts = wanted > 0; firsts >= 0; firsts--) {
        for (int p = 0; p < SWEEP_PATTERNS; p++) {
            if (is_wanted(only, pattern_names[p])) {
                size_t added = add_pattern((enum sweep_pattern)p, seed, firsts != 0);
                kept += firsts ? added : 0;
            }
        }
    }
    size_t all = point_count - kept;
    if (wanted > 0) {
        thin(kept, wanted > kept ? wanted : kept, seed);
    }
    return all;
}

static int index_of(const char *const *names, int count, const char *name)
{
    int i = 0;
    while (i < count && strcmp(names[i], name) != 0) {
        i++;
    }
    return i;
}

static void read_point(char *text)
{
    char *pattern = strtok(text, ":"), *act = strtok(NULL, ":"), *stops = strtok(NULL, ":"),
         *function = strtok(NULL, ":"), *nth = strtok(NULL, ":");
    struct function called = {.calls = 0};
    int p = pattern ? index_of(pattern_names, SWEEP_PATTERNS, pattern) : SWEEP_PATTERNS;
    int a = act ? index_of(act_names, SWEEP_ACTS, act) : SWEEP_ACTS;
    if (p == SWEEP_PATTERNS || a == SWEEP_ACTS || !nth) {
        fprintf(stderr, "sweep: --point: expected PATTERN:ACT:stops|on:FUNCTION:N\n");
        exit(2);
    }
    snprintf(called.name, sizeof called.name, "%s", function);
    add((enum sweep_pattern)p, (enum sweep_act)a, strcmp(stops, "stops") == 0, &called,
        (unsigned)strtoul(nth, NULL, 10));
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    char *one = NULL;
    size_t wanted = 300, all;
    unsigned seed = 1;
    int places = 6;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--scratch") == 0) {
            snprintf(scratch, sizeof scratch, "%s", argv[i + 1]);
        } else if (strcmp(argv[i], "--points") == 0) {
            wanted = strtoul(argv[i + 1], NULL, 10); /* 0: all */
        } else if (strcmp(argv[i], "--seed") == 0) {
            seed = (unsigned)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--jobs") == 0) {
            places = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--only") == 0) {
            only = argv[i + 1];
        } else if (strcmp(argv[i], "--point") == 0) {
            one = argv[i + 1];
        }
    }
    if (scratch[0] == '\0' || places < 1 || places > MAX_JOBS) {
        fprintf(stderr, "sweep: expected --scratch FOLDER, --jobs 1 to %d\n", MAX_JOBS);
        return 2;
    }
    prepare_jobs(places);
    if (one) {
        read_point(one);
        all = 1;
    } else {
        all = make_points(only, wanted, &seed);
    }
    run_all(places);
    size_t bad = 0;
    printf("# %zu of %zu points:", point_count, all);
    for (int v = 0; v < VERDICTS; v++) {
        printf("%s %s %zu", v > 0 ? "," : "", verdict_names[v], counts[v]);
        bad += v >= SILENT ? counts[v] : 0;
    }
    printf("\n");
    return bad == 0 ? 0 : 1;
}
