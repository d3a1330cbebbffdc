#!/bin/sh
# Makes one cluster of the servers in REDIS_SERVERS ("host:port host:port …"), primaries first, with
# REDIS_REPLICAS_EACH replicas each.  Does nothing when they are one already.  Servers that were one and lost each
# other, or whose making was interrupted, are made whole with the names and slots that they have.
# Ends with 1 when they do not become one within REDIS_PATIENCE_S seconds.
set -eu
servers=$REDIS_SERVERS
replicas=${REDIS_REPLICAS_EACH:-1}
patience_s=${REDIS_PATIENCE_S:-120}
REDISCLI_AUTH=$(cat "${REDIS_SECRETS:-/run/secrets}/redis_admin_password")
export REDISCLI_AUTH

ask() { at=$1; shift; timeout 5 redis-cli --user admin --no-auth-warning -h "${at%:*}" -p "${at##*:}" "$@" 2>/dev/null; }
fact() { ask "$1" cluster info | tr -d '\r' | sed -n "s/^$2://p"; }
# Redis introduces servers to each other by address only.
address_of() { found=$(getent hosts "${1%:*}" | cut -d ' ' -f 1 | head -n 1); echo "${found:-${1%:*}}"; }
end=$(( $(date +%s) + patience_s ))
wait_or_fail() { [ "$(date +%s)" -lt "$end" ] || { echo "form-cluster: $1" >&2; exit 1; }; sleep 1; }

count=0
first=
for server in $servers; do
    count=$((count + 1))
    first=${first:-$server}
    until [ "$(ask "$server" ping)" = PONG ]; do wait_or_fail "$server does not answer"; done
done
primaries=$((count / (replicas + 1)))

# Every slot has an owner, the first server reaches all the others, and the replicas are what they are to be.
whole() {
    [ "$(fact "$first" cluster_state)" = ok ] && [ "$(fact "$first" cluster_slots_assigned)" = 16384 ] &&
        ask "$first" cluster nodes | awk -v servers="$count" -v replicas="$((primaries * replicas))" '
            $8 != "connected" || "," $3 "," ~ /,(fail|fail\?|handshake|noaddr),/ { next }
            { reached++ }
            $3 ~ /slave/ { attached++ }
            END { exit !(reached >= servers && attached >= replicas) }'
}

# nodes.conf has the addresses of before: when all are elsewhere at once, none finds another by itself.
introduce() {
    for server in $servers; do
        [ "$server" = "$first" ] || ask "$first" cluster meet "$(address_of "$server")" "${server##*:}" >/dev/null || true
    done
}

# Primaries without slots, beyond those that are to be primaries, become replicas of whoever has the fewest.
# Redis itself refuses it of a server that has slots or keys.
attach() {
    names=
    for server in $servers; do
        name=$(ask "$server" cluster myid) || return 0
        names="$names $name $server"
    done
    ask "$first" cluster nodes | awk -v names="$names" -v primaries="$primaries" '
        $3 ~ /slave/ { replicas_of[$4]++ }
        $3 ~ /master/ { primary[$1]; if (NF > 8) full[$1] }
        END {
            words = split(names, word, " ")
            for (i = 1; i < words; i += 2) if (word[i] in full) { kept[word[i]]; held++ }
            for (i = 1; i < words; i += 2) {
                if (!(word[i] in primary) || word[i] in full) continue
                if (held < primaries) { kept[word[i]]; held++; continue }
                least = ""
                for (name in kept) if (least == "" || replicas_of[name] + 0 < replicas_of[least] + 0) least = name
                replicas_of[least]++
                print word[i + 1], least
            }
        }' | while read -r server primary; do ask "$server" cluster replicate "$primary" </dev/null >/dev/null || true; done
}

if whole; then
    echo "form-cluster: $count servers are one cluster already"
    exit 0
fi
if [ "$(fact "$first" cluster_known_nodes)" -gt 1 ]; then
    # They know of each other: they come back, or were interrupted.  Making a cluster anew would lose slots.
    rounds=0
    until whole; do
        wait_or_fail "the cluster does not become whole; see: redis-cli --cluster check $first"
        rounds=$((rounds + 1))
        # Rarely, and not at first: servers that have only just come back need some seconds to agree by themselves.
        if [ $((rounds % 5)) = 2 ]; then introduce; fi
        if [ $((rounds % 5)) = 0 ]; then attach; fi
    done
    echo "form-cluster: $count servers are one cluster again"
    exit 0
fi
addresses=
for server in $servers; do addresses="$addresses $(address_of "$server"):${server##*:}"; done
# shellcheck disable=SC2086  # a list of addresses
made=$(redis-cli --user admin --no-auth-warning --cluster create $addresses --cluster-replicas "$replicas" \
    --cluster-yes 2>&1) || { echo "$made" >&2; echo "form-cluster: the cluster could not be made" >&2; exit 1; }
until whole; do wait_or_fail "the cluster does not become whole"; done
echo "form-cluster: $count servers are one cluster"
