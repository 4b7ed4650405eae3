#!/usr/bin/env bash
# Checks specs/epoch_fence.pml exhaustively with spin and gcc (apt-get install spin gcc).
#
# usage: specs/check.sh                       everything: the claims, the witnesses, each mutant; some minutes
#        specs/check.sh list | row NAME       the names of what is checked; one of them
#        specs/check.sh safety [-DFLAG ...]   the claims of safety; exit 0 if they hold, 1 if one is violated
#        specs/check.sh ltl NAME [-DFLAG ...] one ltl formula, with weak fairness
#
# -DONLY=1..8 looks at one claim alone: 1 SPLIT, 2 LATE, 3 DOUBLED, 4 STALE, 5 DISHONEST, 6 LOST, 7 BOUNDED,
# 8 UNFAIR. -DOUTBOX_MAX=n bounds what may wait for a client that does not read; without it, all there is may.
set -euo pipefail
model=$(cd "$(dirname "$0")" && pwd)/epoch_fence.pml

# Runs spin, gcc and the verifier in a folder of their own. Exit status 2: the search was not exhaustive or did not run.
verify() {
    local how=$1 folder result
    shift
    local formula=""
    if [ "$how" = ltl ]; then formula=$1; shift; fi
    folder=$(mktemp -d)
    (
        cd "$folder"
        spin -a "$@" "$model" >spin.txt 2>&1 || { cat spin.txt >&2; exit 2; }
        if [ "$how" = safety ]; then
            gcc -O1 -w -DCOLLAPSE -DSAFETY -DNOCLAIM -o pan pan.c
            ./pan -m100000 -w22 >pan.txt 2>&1
        else
            gcc -O2 -w -DCOLLAPSE -DNFAIR=4 -o pan pan.c
            ./pan -m100000 -w23 -a -f -N "$formula" >pan.txt 2>&1
        fi
        grep -E '^pan:[0-9]+: (assertion|acceptance|invalid)' pan.txt || true
        echo "$(grep -oE '[0-9]+ states, stored' pan.txt), $(grep -oE 'errors: [0-9]+' pan.txt)"
        if grep -qE 'max search depth too small|out of memory' pan.txt; then echo "the search was cut short" >&2; exit 2; fi
        grep -q 'errors: 0' pan.txt && exit 0
        grep -qE 'errors: [1-9]' pan.txt && exit 1
        cat pan.txt >&2
        exit 2
    ) && result=0 || result=$?
    rm -rf "$folder"
    return "$result"
}

# What is expected: exit status | in words | arguments of verify.
table=(
    "0|safety holds|safety"
    "0|every barge-in is answered|ltl answered"
    "1|witness: a second cut after a takeover|ltl never_second_cut_after_takeover"
    "1|witness: a gap that is announced|ltl never_an_announced_gap"
    "0|safety holds with an outbox of one frame|safety -DOUTBOX_MAX=1"
    "0|every barge-in is answered, with that outbox|ltl answered -DOUTBOX_MAX=1"
    "0|safety holds after more overflows (NO_BARGE_IN)|safety -DOUTBOX_MAX=1 -DLOG_MAX=7 -DNO_BARGE_IN"
    "0|who reads again gets on (NO_BARGE_IN)|ltl gets_on -DOUTBOX_MAX=1 -DLOG_MAX=7 -DNO_BARGE_IN"
    "1|witness: an answer fails and the session lives (NO_BARGE_IN)|ltl never_lives_on_after_an_overflow -DOUTBOX_MAX=1 -DLOG_MAX=7 -DNO_BARGE_IN"
    "1|witness: a slow reader is sent away and frames leave|ltl never_lets_go -DOUTBOX_MAX=1"
    "1|mutant NO_WRITE_FENCE breaks DISHONEST|safety -DNO_WRITE_FENCE -DONLY=5"
    "1|mutant NO_SILENCE breaks LOST|safety -DNO_SILENCE -DONLY=6"
    "1|mutant NO_TERM_CHECK breaks SPLIT|safety -DNO_TERM_CHECK -DONLY=1"
    "1|mutant FOLD_FIRST breaks LATE|safety -DFOLD_FIRST -DONLY=2"
    "1|mutant FOLD_FIRST breaks STALE|safety -DFOLD_FIRST -DONLY=4"
    "1|mutant NO_OUTPUT_FENCE breaks LATE|safety -DNO_OUTPUT_FENCE -DONLY=2"
    "1|mutant PURGE_ONLY breaks DISHONEST|safety -DPURGE_ONLY -DONLY=5"
    "1|mutant NO_RESUME_NUMBER breaks LOST|safety -DNO_RESUME_NUMBER -DONLY=6"
    "1|mutant RESUME_FROM_START breaks DOUBLED|safety -DRESUME_FROM_START -DONLY=3"
    "1|mutant STAY_SILENT leaves a barge-in unanswered|ltl answered -DSTAY_SILENT"
    "1|mutant NO_BOUND breaks BOUNDED|safety -DNO_BOUND -DOUTBOX_MAX=1 -DLOG_MAX=7 -DNO_BARGE_IN -DONLY=7"
    "1|mutant COUNT_REPLAY breaks UNFAIR|safety -DCOUNT_REPLAY -DOUTBOX_MAX=1 -DONLY=8"
    "1|mutant PURGE_NOTICES breaks LOST|safety -DPURGE_NOTICES -DOUTBOX_MAX=1 -DONLY=6"
    "1|mutant LET_GO_SILENTLY breaks LOST|safety -DLET_GO_SILENTLY -DOUTBOX_MAX=1 -DONLY=6"
    "1|mutant STAY_FULL leaves a client behind|ltl gets_on -DSTAY_FULL -DOUTBOX_MAX=1"
)

# One row of the table, by its words. Prints a line; exit status 0 if it came out as expected.
row() {
    local wanted what arguments output got=0
    IFS='|' read -r wanted what arguments <<<"$1"
    # shellcheck disable=SC2086  # the arguments are words
    output=$(verify $arguments) || got=$?
    if [ "$got" = "$wanted" ]; then
        printf 'ok      %-50s %s\n' "$what" "$(tail -n 1 <<<"$output")"
    else
        printf 'FAILED  %s\n%s\n' "$what" "$output"
        return 1
    fi
}

everything() {
    local failures=0
    for line in "${table[@]}"; do row "$line" || failures=$((failures + 1)); done
    [ "$failures" = 0 ] && echo "All as expected." || { echo "$failures not as expected."; exit 1; }
}

case "${1:-all}" in
    all) everything ;;
    list) printf '%s\n' "${table[@]}" | cut -d'|' -f2 ;;
    row) for line in "${table[@]}"; do [[ $line == *"|$2|"* ]] && { row "$line"; exit; }; done; exit 2 ;;
    safety | ltl) verify "$@" ;;
    *) sed -n '2,10p' "$0"; exit 2 ;;
esac
