/* SPDX-License-Identifier: MIT */
/*
 * sweep.c - see sweep.h; lists the points, runs each in a job of its own, and judges what became of the job
 *
 *   LD_PRELOAD=libonehop.so sweep --scratch FOLDER [--points N] [--seed S] [--jobs N] [--only PATTERN,...]
 *   LD_PRELOAD=libonehop.so sweep --scratch FOLDER --point PATTERN:ACT:stops|on:FUNCTION:N
 *
 * A run without a fault lists the functions of the driver that the library calls in one rank after its set-up. A point
 * is the n-th call of one of them, in one pattern of calls, with one act. Of --points N, each function of each pattern
 * fails once, and the rest is drawn; 0: all points. Exit status: 0 when every point was judged good.
 */
#include "test/e2e/sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/common/options.h"

#define MAX_JOBS 32
#define MAX_POINTS 65536
#define MAX_FUNCTIONS 64 /* of a pattern */
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
struct place {
    struct cf_job job;
    const struct sweep_point *point; /* NULL: this place is free */
    const char *trace;               /* no fault: the file for the functions that the victim calls */
    int running;                     /* processes */
    bool crashed;
    double begun, stopped; /* stopped: when the victim was, 0: it is not */
    char folder[PATH];     /* of the library's names */
    char out[PATH];
};

static const char *scratch = "";
static struct sweep_point points[MAX_POINTS];
static size_t point_count;
static struct place places[MAX_JOBS];
static size_t counts[VERDICTS];

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

static struct sweep_board *board_of(const struct place *place)
{
    return (struct sweep_board *)place->job.board;
}

static void set_environment(const struct place *place, int process)
{
    const struct sweep_point *point = place->point;
    char text[PATH + 16];
    setenv("ONEHOP_SHM_DIR", place->folder, 1);
    snprintf(text, sizeof text, "%s.report", place->out);
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
    if (place->trace != NULL) {
        setenv("SIMNODE_TRACE", place->trace, 1);
    } else {
        snprintf(text, sizeof text, "%s:%u", point->function, point->nth);
        setenv(act_variables[point->act], text, 1);
    }
}

static void prepare_process(const struct cf_job *job, int process)
{
    const struct place *place = job->user;
    int out = open(place->out, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0) {
        _exit(2);
    }
    set_environment(place, process);
}

static void start(struct place *place, const struct sweep_point *point, const char *trace)
{
    struct sweep_board *board = board_of(place);
    int nranks = point->pattern == SWEEP_EAGER || point->pattern == SWEEP_NCCL ? 3 : 2;
    *board = (struct sweep_board){.point = *point};
    board->board.layout =
        (struct cf_layout){.nranks = nranks, .local = has_threads(point) ? nranks : 1, .threads = has_threads(point)};
    board->board.seed = 1;
    unlink(place->out);
    place->point = point;
    place->trace = trace;
    place->begun = cf_now();
    place->stopped = 0;
    place->crashed = false;
    cf_job_start(&place->job);
    place->running = place->job.processes;
}

static bool is_meant(const struct place *place, int process, int status)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return true;
    }
    return place->point->act == SWEEP_KILL && process == VICTIM && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/* A victim that is stopped goes on later: once, since a leak checker stops its threads, too. */
static void look_after_victim(struct place *place)
{
    pid_t victim = place->job.pid[has_threads(place->point) ? 0 : VICTIM];
    siginfo_t info = {.si_pid = 0};
    if (victim > 0 && waitid(P_PID, (id_t)victim, &info, WSTOPPED | WNOHANG) == 0 && info.si_pid == victim) {
        place->stopped = cf_now();
    }
    if (victim > 0 && place->stopped > 0 && cf_now() - place->stopped > STOP_S) {
        kill(victim, SIGCONT);
        place->stopped = 0;
    }
}

/* Looks at the processes of a job; true: all have ended. */
static bool has_ended(struct place *place)
{
    int process, status;
    look_after_victim(place);
    while (cf_job_ended(&place->job, &process, &status)) {
        place->running--;
        place->crashed |= !is_meant(place, process, status);
    }
    return place->running == 0;
}

/* --- judgement ---------------------------------------------------------------------------------------------------- */

/* What the simulated libraries count at the end of a process that has cleaned up. */
static bool report_has_leaks(const struct place *place, pid_t pid, char *what_p, size_t room)
{
    static const char *const things[] = {"mem_live_bytes", "host_live", "ipc_open", "streams_live", "events_live"};
    char path[PATH + 32], name[64];
    long number;
    bool leaks = false;
    snprintf(path, sizeof path, "%s.report.%d", place->out, (int)pid);
    FILE *file = fopen(path, "r");
    while (file != NULL && fscanf(file, "%63s %ld%*[^\n]", name, &number) >= 1) {
        if (cf_index(things, sizeof things / sizeof *things, name) >= 0 && number != 0) {
            snprintf(what_p, room, "%s %ld", name, number);
            leaks = true;
        }
    }
    if (file != NULL) {
        fclose(file);
        unlink(path);
    }
    return leaks;
}

/* Names that are left in the library's folder; they are removed, so that the next job finds none. */
static bool folder_has_names(const struct place *place)
{
    bool found = false;
    DIR *folder = opendir(place->folder);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] != '.') {
            found = true;
            unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return found;
}

static bool finds_leaks(const struct place *place, char *what_p, size_t room)
{
    const struct sweep_board *board = board_of(place);
    bool leaks = false;
    for (int r = 0; r < board->board.layout.nranks; r++) {
        unsigned flags = atomic_load(&board->flags[r]);
        bool reported = report_has_leaks(place, board->board.pid[r], what_p, room);
        if ((flags & SWEEP_FINISHED) && (flags & SWEEP_LEAKS)) {
            snprintf(what_p, room, "memory of rank %d", r);
        }
        leaks |= (flags & SWEEP_FINISHED) && (reported || (flags & SWEEP_LEAKS));
    }
    if (folder_has_names(place)) {
        snprintf(what_p, room, "a name");
        leaks = true;
    }
    return leaks;
}

/* An error that no rank should have got. all: the flags of all ranks. */
static bool is_alarm(const struct place *place, unsigned all)
{
    const struct sweep_board *board = board_of(place);
    bool errors = all & (SWEEP_TOLD | SWEEP_WAITED | SWEEP_LATE), after_all = false;
    for (int r = 0; r < board->board.layout.nranks; r++) {
        unsigned flags = atomic_load(&board->flags[r]);
        after_all |= (flags & SWEEP_LATE) && !(flags & (SWEEP_TOLD | SWEEP_WAITED));
    }
    switch (place->point->act) {
    case SWEEP_STOP:
        return errors;
    case SWEEP_FAIL: /* the rank whose call failed must know */
        return errors && !(all & SWEEP_TOLD);
    default: /* a peer that has ended is missed by calls alone */
        return after_all;
    }
}

static enum verdict judge(const struct place *place, bool hangs, char *what_p, size_t room)
{
    const struct sweep_board *board = board_of(place);
    unsigned all = 0;
    for (int r = 0; r < board->board.layout.nranks; r++) {
        all |= atomic_load(&board->flags[r]);
    }
    bool leaks = finds_leaks(place, what_p, room);
    return hangs                   ? HANG
           : place->crashed        ? CRASH
           : all & SWEEP_SILENT    ? SILENT
           : all & SWEEP_UNTOLD    ? UNTOLD
           : all & SWEEP_FORGOTTEN ? FORGOTTEN
           : is_alarm(place, all)  ? ALARM
           : leaks                 ? LEAK
           : all & SWEEP_WAITED    ? WAITS
           : all & SWEEP_TOLD      ? TOLD
                                   : RIGHT;
}

static void print_point(FILE *file, const struct sweep_point *point)
{
    fprintf(file, "%s:%s:%s:%s:%u", pattern_names[point->pattern], act_names[point->act], point->stops ? "stops" : "on",
            point->function, point->nth);
}

static void print_tail(const struct place *place)
{
    char line[1024];
    FILE *file = fopen(place->out, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        printf("#     %s", line);
    }
    if (file != NULL) {
        fclose(file);
    }
}

static void finish(struct place *place, bool hangs)
{
    char what[128] = "";
    if (hangs) {
        cf_job_kill(&place->job);
    }
    enum verdict verdict = judge(place, hangs, what, sizeof what);
    counts[verdict]++;
    if (verdict >= SILENT) {
        printf("# %s%s%s: ", verdict_names[verdict], what[0] ? ", left: " : "", what);
        print_point(stdout, place->point);
        printf("\n");
        if (counts[verdict] <= 2) {
            print_tail(place);
        }
        fflush(stdout);
    }
    place->point = NULL;
}

/* --- all jobs ----------------------------------------------------------------------------------------------------- */

static void run_all(int jobs)
{
    size_t next = 0, done = 0;
    while (done < point_count) {
        for (int j = 0; j < jobs; j++) {
            struct place *place = &places[j];
            bool hangs = place->point != NULL && cf_now() - place->begun > LIMIT_S;
            if (place->point != NULL && (has_ended(place) || hangs)) {
                finish(place, hangs);
                if (++done % 250 == 0) {
                    printf("# %zu of %zu points\n", done, point_count);
                    fflush(stdout);
                }
            }
            if (place->point == NULL && next < point_count) {
                start(place, &points[next++], NULL);
            }
        }
        usleep(1000);
    }
}

static void open_places(char **argv, int jobs)
{
    for (int j = 0; j < jobs; j++) {
        struct place *place = &places[j];
        place->job = (struct cf_job){.prepare = prepare_process, .user = place};
        cf_job_open(&place->job, argv, sizeof(struct sweep_board));
        snprintf(place->out, sizeof place->out, "%s/out.%d", scratch, j);
        snprintf(place->folder, sizeof place->folder, "%s/names.%d", scratch, j);
        if (mkdir(place->folder, 0700) != 0 && errno != EEXIST) {
            quit(place->folder);
        }
    }
}

/* --- points ------------------------------------------------------------------------------------------------------- */

struct function {
    char name[SWEEP_NAME];
    unsigned calls;
};

/* Runs a pattern without a fault; the functions that the victim calls go to a file. */
static void trace_pattern(enum sweep_pattern pattern, const char *path)
{
    struct sweep_point point = {.pattern = pattern};
    char what[128] = "";
    unlink(path);
    start(&places[0], &point, path);
    while (!has_ended(&places[0])) {
        usleep(1000);
    }
    enum verdict verdict = judge(&places[0], false, what, sizeof what);
    if (verdict != RIGHT) {
        printf("# %s, without a fault: %s %s\n", pattern_names[pattern], verdict_names[verdict], what);
        print_tail(&places[0]);
        exit(1);
    }
    places[0].point = NULL;
}

static size_t list_functions(enum sweep_pattern pattern, struct function *functions, size_t room)
{
    char path[PATH], name[SWEEP_NAME];
    size_t count = 0;
    snprintf(path, sizeof path, "%s/trace", scratch);
    trace_pattern(pattern, path);
    FILE *file = fopen(path, "r");
    while (file != NULL && fscanf(file, "%63s", name) == 1) {
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
    if (file != NULL) {
        fclose(file);
    }
    return count;
}

static unsigned draw(struct cf_source *source, unsigned below)
{
    return (unsigned)cf_draw(source, below);
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

/* All points at the calls of a function. */
static void add_all(enum sweep_pattern pattern, const struct function *function)
{
    for (int act = 0; act < SWEEP_ACTS; act++) {
        for (unsigned n = 1; n <= function->calls && makes_sense(pattern, (enum sweep_act)act); n++) {
            add(pattern, (enum sweep_act)act, false, function, n);
            add(pattern, (enum sweep_act)act, true, function, n);
        }
    }
}

/* `wanted` of the points, drawn; the first `kept` stay. */
static void thin(size_t kept, size_t wanted, struct cf_source *source)
{
    for (size_t i = kept; i < wanted && i < point_count; i++) {
        size_t other = i + draw(source, (unsigned)(point_count - i));
        struct sweep_point point = points[i];
        points[i] = points[other];
        points[other] = point;
    }
    point_count = wanted < point_count ? wanted : point_count;
}

/* All points; of `wanted` ones, each function of each pattern fails once in front. Returns how many there would be. */
static size_t make_points(const bool *patterns, size_t wanted, struct cf_source *source)
{
    static struct function functions[SWEEP_PATTERNS][MAX_FUNCTIONS];
    size_t count[SWEEP_PATTERNS] = {0};
    for (int p = 0; p < SWEEP_PATTERNS; p++) {
        count[p] = patterns[p] ? list_functions((enum sweep_pattern)p, functions[p], MAX_FUNCTIONS) : 0;
        for (size_t f = 0; f < count[p] && wanted > 0; f++) {
            add((enum sweep_pattern)p, SWEEP_FAIL, draw(source, 2) != 0, &functions[p][f],
                1 + draw(source, functions[p][f].calls));
        }
    }
    size_t kept = point_count;
    for (int p = 0; p < SWEEP_PATTERNS; p++) {
        for (size_t f = 0; f < count[p]; f++) {
            add_all((enum sweep_pattern)p, &functions[p][f]);
        }
    }
    size_t all = point_count - kept;
    if (wanted > 0) {
        thin(kept, wanted > kept ? wanted : kept, source);
    }
    return all;
}

/* --- the command line --------------------------------------------------------------------------------------------- */

static bool add_wanted(void *patterns, const char *name)
{
    int p = cf_index(pattern_names, SWEEP_PATTERNS, name);
    if (p >= 0) {
        ((bool *)patterns)[p] = true;
    }
    return p >= 0;
}

static bool take_only(void *patterns, const char *list)
{
    memset(patterns, 0, SWEEP_PATTERNS * sizeof(bool));
    return cf_for_each(list, add_wanted, patterns);
}

static bool take_point(void *unused, const char *text)
{
    struct function called = {.calls = 0};
    char pattern[16], act[16], stops[16];
    unsigned nth;
    (void)unused;
    if (sscanf(text, "%15[^:]:%15[^:]:%15[^:]:%63[^:]:%u", pattern, act, stops, called.name, &nth) != 5) {
        return false;
    }
    int p = cf_index(pattern_names, SWEEP_PATTERNS, pattern), a = cf_index(act_names, SWEEP_ACTS, act);
    if (p >= 0 && a >= 0) {
        add((enum sweep_pattern)p, (enum sweep_act)a, strcmp(stops, "stops") == 0, &called, nth);
    }
    return p >= 0 && a >= 0;
}

int main(int argc, char **argv)
{
    static const char usage[] =
        "usage: sweep --scratch FOLDER [--points N] [--seed S] [--jobs N] [--only PATTERN,...]\n"
        "       sweep --scratch FOLDER --point PATTERN:ACT:stops|on:FUNCTION:N\n";
    bool patterns[SWEEP_PATTERNS];
    int wanted = 300, jobs = 6, process;
    struct cf_source source = {1};
    struct cf_board *board;
    const struct cf_option table[] = {
        CF_WORD("scratch", &scratch),
        CF_INT("points", &wanted, 0, MAX_POINTS),
        CF_NUMBER("seed", &source.state),
        CF_INT("jobs", &jobs, 1, MAX_JOBS),
        CF_TAKES("only", take_only, patterns),
        CF_TAKES("point", take_point, NULL),
        CF_NO_MORE,
    };
    if (cf_job_join(sizeof(struct sweep_board), &board, &process)) {
        return cf_job_run(board, process, sweep_rank, NULL);
    }
    memset(patterns, true, sizeof patterns);
    if (cf_options_read(argc, argv, usage, table) < argc || *scratch == '\0') {
        cf_options_refuse(usage);
    }
    open_places(argv, jobs);
    size_t bad = 0, all = point_count > 0 ? 1 : make_points(patterns, (size_t)wanted, &source);
    run_all(jobs);
    for (int j = 0; j < jobs; j++) {
        cf_job_close(&places[j].job);
    }
    printf("# %zu of %zu points:", point_count, all);
    for (int v = 0; v < VERDICTS; v++) {
        printf("%s %s %zu", v > 0 ? "," : "", verdict_names[v], counts[v]);
        bad += v >= SILENT ? counts[v] : 0;
    }
    printf("\n");
    return bad == 0 ? 0 : 1;
}
