#!/bin/sh
# Makes one cluster of the servers in REDIS_SERVERS ("host:port host:port …"), primaries first, with
# REDIS_REPLICAS_EACH replicas each.  Does nothing when they are one already.  Ends with 1 when they do not become one.
set -eu
servers=$REDIS_SERVERS
replicas=${REDIS_REPLICAS_EACH:-1}
patience_s=${REDIS_PATIENCE_S:-120}
REDISCLI_AUTH=$(cat "${REDIS_SECRETS:-/run/secrets}/redis_admin_password")
export REDISCLI_AUTH

ask() { at=$1; shift; timeout 5 redis-cli --user admin --no-auth-warning -h "${at%:*}" -p "${at##*:}" "$@" 2>/dev/null; }
fact() { ask "$1" cluster info | tr -d '\r' | sed -n "s/^$2://p"; }
end=$(( $(date +%s) + patience_s ))
wait_or_fail() { [ "$(date +%s)" -lt "$end" ] || { echo "form-cluster: $1" >&2; exit 1; }; sleep 1; }

count=0
first=
for server in $servers; do
    count=$((count + 1))
    first=${first:-$server}
    until [ "$(ask "$server" ping)" = PONG ]; do wait_or_fail "$server does not answer"; done
done

whole() { [ "$(fact "$first" cluster_state)" = ok ] && [ "$(fact "$first" cluster_known_nodes)" -ge "$count" ]; }

if whole; then
    echo "form-cluster: $count servers are one cluster already"
    exit 0
fi
if [ "$(fact "$first" cluster_known_nodes)" -gt 1 ]; then
    # They know of each other: they come back, or were interrupted.  Making a cluster anew would lose slots.
    until whole; do wait_or_fail "the cluster does not become whole; see: redis-cli --cluster check $first"; done
    exit 0
fi
addresses=
for server in $servers; do
    # Redis introduces servers to each other by address only.
    address=$(getent hosts "${server%:*}" | cut -d ' ' -f 1 | head -n 1)
    addresses="$addresses ${address:-${server%:*}}:${server##*:}"
done
# shellcheck disable=SC2086  # a list of addresses
made=$(redis-cli --user admin --no-auth-warning --cluster create $addresses --cluster-replicas "$replicas" \
    --cluster-yes 2>&1) || { echo "$made" >&2; echo "form-cluster: the cluster could not be made" >&2; exit 1; }
until whole; do wait_or_fail "the cluster does not become whole"; done
echo "form-cluster: $count servers are one cluster"
