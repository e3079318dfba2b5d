#!/bin/sh
# A duetime worker in sh, curl and jq; docs/worker-protocol.md explains each step.
#   DUETIME_URL=… DUETIME_KEY=… ./worker.sh QUEUE 'COMMAND'
# COMMAND gets the payload on its standard input and the task's type as $1. Exit code 0:
# succeeded, its output is the result; 75: try again later; anything else: failed for good.
set -u
: "${DUETIME_URL:?}" "${DUETIME_KEY:?}"
queue=${1:-default} command=${2:-cat}
worker="sh-$$-$(od -An -N6 -tx1 /dev/urandom | tr -d ' \n')" # names this process, from its start to its end
folder=$(mktemp -d) && cd "$folder" && echo '[]' >held && : >pid

post() { # path, seconds; the body comes on standard input
    curl -sSf -m "$2" -H "Authorization: Bearer $DUETIME_KEY" -H 'Content-Type: application/json' \
        --data-binary @- "$DUETIME_URL/v1/workers/$1"
}
hold() { printf '%s' "$1" >new && mv new held; } # in one step: the beats read it at any time
beat() { jq -c --arg worker "$worker" '{$worker, attempts: .}' held | post beat 5 >"$1"; }
gone() { jq -e '(.lost + .cancelled) | length > 0' "$1" >/dev/null; } # the task is no longer ours: stop
beats() { while sleep 3; do beat beaten && gone beaten && kill $(cat pid); done 2>/dev/null; }

beats & beats=$!
trap 'kill $beats 2>/dev/null; rm -rf "$folder"' EXIT
trap 'stopping=1' TERM INT
while [ -z "${stopping-}" ]; do
    jq -nc --arg worker "$worker" --arg queue "$queue" '{$worker, queues: [$queue], max: 1, wait: 5}' |
        post lease 15 >leased || { sleep 1; continue; }
    jq -e '.tasks[0]' leased >task || continue
    hold "$(jq -c '[{id, attempt, started: true}]' task)"
    # The lease may have arrived late, or its last worker died: say that it runs, and run it if it is still ours.
    until beat said; do sleep 1; done
    gone said && hold '[]' && continue
    started=$(date -u +%Y-%m-%dT%H:%M:%SZ)
    jq -c .payload task | timeout "$(jq .timeout task)" sh -c "$command" "$0" "$(jq -r .type task)" >out 2>err & pid=$!
    echo $pid >pid
    while wait $pid; code=$?; kill -0 $pid 2>/dev/null; do :; done # a signal ends `wait` early
    : >pid
    [ "$(wc -c <out)" -gt 60000 ] && code=1 && echo 'more than 60000 bytes of output' >err && : >out
    jq -c --arg worker "$worker" --arg at "$started" --argjson code "$code" --rawfile out out --rawfile err err '
        {id, attempt, started_at: $at} + if $code == 0 then {outcome: "succeeded", result: ($out | fromjson? // $out)}
        else {outcome: "failed", error: {message: "exit code \($code)", detail: $err[-4000:],
              kind: (if [75, 124, 143] | index($code) then "transient" else "permanent" end)}} end
        | {$worker, settlements: [.]}' task >settlement
    until post settle 15 <settlement >/dev/null; do sleep 1; done # the same report again is safe
    hold '[]'
done
kill $beats # nothing may come after the last beat, which signs off: nobody waits for this worker's silence
jq -nc --arg worker "$worker" '{$worker, leaving: true}' | post beat 5 >/dev/null
