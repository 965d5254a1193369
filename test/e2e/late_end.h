/* SPDX-License-Identifier: MIT */
/* late_end.h - a call of the program, made by a library's destructor, which runs behind onehop's at exit() */
#ifndef TEST_E2E_LATE_END_H_
#define TEST_E2E_LATE_END_H_

void late_end_keep(void (*function)(void));

#endif
