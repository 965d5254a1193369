#!/bin/sh
# SPDX-License-Identifier: MIT
# driver.sh - automake's driver of TAP tests, and the time that each test takes
#
# usage: driver.sh TAP-DRIVER ARGUMENT...
#
# Adds ":duration: SECONDS" and ":processor: SECONDS-USER SECONDS-SYSTEM" to the .trs file of the test, and prints one
# line when the test has ended. The processor time is that of the test and of all its descendants that were waited for.
name='' trs=''
for word; do
    case $previous in
    --test-name) name=$word ;;
    --trs-file) trs=$word ;;
    esac
    previous=$word
done
begin=$(date +%s)
status=0
"${SHELL:-/bin/sh}" "$@" || status=$?
seconds=$(($(date +%s) - begin))
echo ":duration: $seconds" >>"$trs"
times >"$trs.times" # in this very shell, whose children count
awk 'NR == 2 { split($1, user, /[ms]/); split($2, system_, /[ms]/)
    printf ":processor: %.1f %.1f\n", 60 * user[1] + user[2], 60 * system_[1] + system_[2] }' "$trs.times" >>"$trs"
rm -f "$trs.times"
printf 'DONE: %s: %d points in %d s\n' "$name" "$(grep -c '^:test-result:' "$trs")" "$seconds"
exit $status
