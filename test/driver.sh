#!/bin/sh
# SPDX-License-Identifier: MIT
# driver.sh - automake's driver of TAP tests, and the time that each test takes
#
# usage: driver.sh TAP-DRIVER ARGUMENT...
#
# Adds ":duration: SECONDS" to the .trs file of the test, and prints one line when the test has ended.
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
printf 'DONE: %s: %d points in %d s\n' "$name" "$(grep -c '^:test-result:' "$trs")" "$seconds"
exit $status
