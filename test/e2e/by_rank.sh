#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# by_rank.sh SETTING0 SETTING1 PROGRAM RANK ARGUMENT...: runs the program with the environment setting of its rank.
settings=("$1" "$2")
shift 2
exec env "${settings[$2]}" "$@"
