/* SPDX-License-Identifier: MIT */
#include "hook/doors.h"

#include <stddef.h>

/* nccl.h gives the first two without a prototype, and the others only in newer versions. */
#define DECLARE(name_, types_) ncclResult_t nccl##name_ types_;
OH_REAL_REQUIRED(DECLARE)
OH_REAL_PLAIN(DECLARE)
OH_REAL_OPTIONAL(DECLARE)
#undef DECLARE

/* From a list of types to a list of parameters, and of arguments: (int, char *) gives (int p1, char *p2), (p1, p2). */
#define NUMBER(...) NUMBER_(__VA_ARGS__, 9, 8, 7, 6, 5, 4, 3, 2, 1)
#define NUMBER_(a1_, a2_, a3_, a4_, a5_, a6_, a7_, a8_, a9_, number_, ...) number_
#define JOIN(a_, b_) JOIN_(a_, b_)
#define JOIN_(a_, b_) a_##b_

#define PARAMETERS_1(a_) a_ p1
#define PARAMETERS_2(a_, ...) a_ p2, PARAMETERS_1(__VA_ARGS__)
#define PARAMETERS_3(a_, ...) a_ p3, PARAMETERS_2(__VA_ARGS__)
#define PARAMETERS_4(a_, ...) a_ p4, PARAMETERS_3(__VA_ARGS__)
#define PARAMETERS_5(a_, ...) a_ p5, PARAMETERS_4(__VA_ARGS__)
#define PARAMETERS_6(a_, ...) a_ p6, PARAMETERS_5(__VA_ARGS__)
#define PARAMETERS_7(a_, ...) a_ p7, PARAMETERS_6(__VA_ARGS__)
#define PARAMETERS_8(a_, ...) a_ p8, PARAMETERS_7(__VA_ARGS__)
#define ARGUMENTS_1 p1
#define ARGUMENTS_2 p2, ARGUMENTS_1
#define ARGUMENTS_3 p3, ARGUMENTS_2
#define ARGUMENTS_4 p4, ARGUMENTS_3
#define ARGUMENTS_5 p5, ARGUMENTS_4
#define ARGUMENTS_6 p6, ARGUMENTS_5
#define ARGUMENTS_7 p7, ARGUMENTS_6
#define ARGUMENTS_8 p8, ARGUMENTS_7

/* The function of one door. A call from within another copy's call is unlikely, but put back what was there. */
#define DOOR(slot_, name_, parameters_, arguments_)                                                                    \
    static ncclResult_t name_##_##slot_ parameters_                                                                    \
    {                                                                                                                  \
        const struct oh_real *outer = oh_real_of_door;                                                                 \
        oh_real_of_door = oh_real_at(slot_);                                                                           \
        ncclResult_t res = nccl##name_ arguments_;                                                                     \
        oh_real_of_door = outer;                                                                                       \
        return res;                                                                                                    \
    }

#define DOORS(name_, types_) DOORS_(name_, (JOIN(PARAMETERS_, NUMBER types_) types_), (JOIN(ARGUMENTS_, NUMBER types_)))
#define PLAIN_DOORS(name_, types_) DOORS_(name_, types_, ())
#define DOORS_(name_, parameters_, arguments_)                                                                         \
    DOOR(0, name_, parameters_, arguments_)                                                                            \
    DOOR(1, name_, parameters_, arguments_)                                                                            \
    DOOR(2, name_, parameters_, arguments_)                                                                            \
    DOOR(3, name_, parameters_, arguments_)

OH_REAL_REQUIRED(DOORS)
OH_REAL_PLAIN(PLAIN_DOORS)
OH_REAL_OPTIONAL(DOORS)

#define PLAIN(function_) (void (*)(void)) function_
#define ROW(name_, types_)                                                                                             \
    {"nccl" #name_,                                                                                                    \
     offsetof(struct oh_real, name_),                                                                                  \
     PLAIN(nccl##name_),                                                                                               \
     {PLAIN(name_##_0), PLAIN(name_##_1), PLAIN(name_##_2), PLAIN(name_##_3)}},

const struct oh_door oh_doors[] = {OH_REAL_REQUIRED(ROW) OH_REAL_PLAIN(ROW) OH_REAL_OPTIONAL(ROW)};
const size_t oh_door_count = sizeof oh_doors / sizeof *oh_doors;

_Static_assert(OH_REAL_MAX == 4, "DOORS_ and ROW list the copies");
