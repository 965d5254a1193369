/* SPDX-License-Identifier: MIT */
/*
 * t_board.c - what a process shows: rows are given and taken back, counts outlive their row; and what the reader makes
 * of a board that somebody has tampered with
 */
#include "comm/board.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/comm.h"
#include "test/tap.h"
#include "tools/board_reader.h"

#define MANY (OH_BOARD_ROWS + 3)

static struct oh_comm comms[MANY];

static bool look(struct oh_board_view *view_p)
{
    return oh_board_read(getpid(), view_p) == OH_BOARD_SEEN;
}

static void test_life(void)
{
    struct oh_board_view view;
    struct oh_stats_record gone;
    tap_ok(oh_board_read(getpid(), &view) == OH_BOARD_NONE, "no board before the first communicator");
    for (int i = 0; i < 3; i++) {
        comms[i].key.word[0] = (uint64_t)i + 100;
        comms[i].rank = (uint32_t)i;
        comms[i].nranks = 8;
        oh_board_enter(&comms[i]);
        oh_board_show(&comms[i]);
        oh_count(&oh_comm_counters(&comms[i])->calls[1], 10);
        oh_count(&oh_comm_counters(&comms[i])->bytes, 1000);
    }
    bool seen = look(&view);
    tap_ok(seen && view.rows == 3 && view.ended == 0 && view.torn == 0, "three communicators");
    tap_ok(view.rows == 3 && view.row[1].comm == 101 && view.row[1].rank == 1 && view.row[1].nranks == 8 &&
               view.row[1].state == OH_STATE_IDLE && view.row[1].calls[1] == 10 && view.row[1].bytes == 1000 &&
               view.row[1].pid == (uint64_t)getpid() && view.row[1].reason[0],
           "a row has what the communicator has");
    oh_board_view_free(&view);

    atomic_store(&comms[1].settled, true);
    snprintf(comms[1].reason, sizeof comms[1].reason, "a reason\twith\033[2J");
    oh_board_show(&comms[1]);
    seen = look(&view);
    tap_ok(seen && view.row[1].state == OH_STATE_HANDED_BACK && strcmp(view.row[1].reason, "a reason?with?[2J") == 0,
           "how it stands now, in printable text");
    oh_board_view_free(&view);

    oh_board_leave(&comms[1]);
    tap_ok(comms[1].row == NULL && atomic_load(&comms[1].counters.calls[1]) == 10, "it takes its counts along");
    seen = look(&view);
    tap_ok(seen && view.rows == 2 && view.ended == 1 && view.gone.calls[1] == 10 && view.gone.bytes == 1000,
           "and the sum of those that have ended has them");
    oh_board_view_free(&view);
    tap_ok(oh_board_gone(&gone) == 1 && gone.bytes == 1000, "inside the process too");
    struct oh_board_row *left = comms[2].row - 1;
    memset(&comms[1].counters, 0, sizeof comms[1].counters);
    oh_board_enter(&comms[1]);
    tap_ok(comms[1].row == left && atomic_load(&left->counters.calls[1]) == 0, "a row is used again, from zero");
}

static void test_full(void)
{
    struct oh_board_view view;
    for (int i = 3; i < MANY; i++) {
        oh_board_enter(&comms[i]);
    }
    tap_ok(comms[OH_BOARD_ROWS - 1].row && !comms[OH_BOARD_ROWS].row && !comms[MANY - 1].row,
           "more communicators than rows: the last have none");
    oh_count(&oh_comm_counters(&comms[MANY - 1])->calls[0], 5);
    tap_ok(atomic_load(&comms[MANY - 1].counters.calls[0]) == 5, "and count for themselves");
    bool seen = look(&view);
    tap_ok(seen && view.rows == OH_BOARD_ROWS, "%d rows are read", OH_BOARD_ROWS);
    oh_board_view_free(&view);
    oh_board_leave(&comms[MANY - 1]);
    for (int i = 3; i < OH_BOARD_ROWS; i++) {
        oh_board_leave(&comms[i]);
    }
    seen = look(&view);
    tap_ok(seen && view.rows == 3 && view.gone.calls[0] == 5, "their counts are not lost");
    oh_board_view_free(&view);
}

/* A copy of a good board, to be spoiled. Returns its descriptor. */
static int copy_board(struct oh_board **board_p)
{
    int fd = memfd_create("copy", MFD_CLOEXEC);
    struct oh_board *board = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, sizeof *board) == 0) {
        board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (board == MAP_FAILED) {
        exit(1);
    }
    memcpy(&board->head, (char *)comms[0].row - offsetof(struct oh_board, row), sizeof board->head);
    memcpy(board->row, comms[0].row, 3 * sizeof board->row[0]);
    *board_p = board;
    return fd;
}

static void expect(int fd, enum oh_board_answer wanted, const char *what)
{
    struct oh_board_view view = {.pid = 1};
    enum oh_board_answer got = oh_board_read_file(fd, getpid(), &view);
    tap_ok(got == wanted, "%s: %s", what, oh_board_words(got));
    if (got == OH_BOARD_SEEN) {
        oh_board_view_free(&view);
    }
}

static void test_tampering(void)
{
    struct oh_board *board;
    struct oh_board_view view = {.pid = 1};
    int fd = copy_board(&board);
    expect(fd, OH_BOARD_SEEN, "a copy is as good");
    board->head.pid++;
    expect(fd, OH_BOARD_NONE, "another process's");
    board->head.pid--;
    board->head.version++;
    expect(fd, OH_BOARD_OTHER, "another version");
    board->head.version--;
    board->head.row_bytes = 8;
    expect(fd, OH_BOARD_OTHER, "rows of another size");
    board->head.row_bytes = sizeof(struct oh_board_row);
    board->head.rows = UINT32_MAX;
    expect(fd, OH_BOARD_OTHER, "another number of rows");
    board->head.rows = OH_BOARD_ROWS;
    uint32_t top = board->head.top;
    board->head.top = UINT32_MAX;
    expect(fd, OH_BOARD_DAMAGED, "more rows used than there are");
    board->head.top = top;
    board->row[1].generation = 7;
    tap_ok(oh_board_read_file(fd, getpid(), &view) == OH_BOARD_SEEN && view.torn == 1 && view.rows == 2,
           "a row that is being changed for ever is left out");
    oh_board_view_free(&view);
    memset(board->row, 0xfe, 3 * sizeof board->row[0]);
    tap_ok(oh_board_read_file(fd, getpid(), &view) == OH_BOARD_SEEN && view.rows == 3 &&
               oh_state_key(view.row[0].state) == NULL && strlen(view.row[0].reason) == OH_REASON_BYTES - 1 &&
               view.row[0].reason[0] == '?',
           "rubbish in rows is read as numbers and question marks");
    oh_board_view_free(&view);
    board->head.magic[0] = 'O';
    expect(fd, OH_BOARD_DAMAGED, "another magic");
    board->head.magic[0] = 'o';
    munmap(board, sizeof *board);
    tap_ok(ftruncate(fd, sizeof *board - 1) == 0, "cut short by a byte");
    expect(fd, OH_BOARD_DAMAGED, "cut short");
    tap_ok(ftruncate(fd, 5) == 0, "cut to five bytes");
    expect(fd, OH_BOARD_DAMAGED, "cut to five bytes");
    close(fd);
    int ends[2];
    tap_ok(pipe(ends) == 0, "a pipe");
    expect(ends[0], OH_BOARD_DAMAGED, "a pipe: not waited for");
}

int main(void)
{
    test_life();
    test_full();
    test_tampering();
    return tap_done();
}
