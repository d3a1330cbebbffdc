#!/bin/sh
# Starts one Redis server of the region's cluster.
#   REDIS_PORT       6379 when it is not given
#   REDIS_ADDRESS    where the other servers reach this one; asked of the host's name when it is not given
#   REDIS_MAXMEMORY  such as 1gb; without it there is no bound
#   REDIS_SECRETS    a folder with redis_password (of the user "apportion": nodes and sync service) and
#                    redis_admin_password (of the user "admin": replication, and whoever forms the cluster)
#   REDIS_CONFIG, REDIS_DATA, REDIS_RUN  where redis.conf lies, where nodes.conf is kept, where the users are written
set -eu
secrets=${REDIS_SECRETS:-/run/secrets}
data=${REDIS_DATA:-/data}
run=${REDIS_RUN:-/run/redis}
port=${REDIS_PORT:-6379}
address=${REDIS_ADDRESS:-$(hostname -i | cut -d ' ' -f 1)}
[ -n "$address" ] || { echo "start: this host's address is not known; give REDIS_ADDRESS" >&2; exit 1; }

digest() { printf '%s' "$(cat "$secrets/$1")" | sha256sum | cut -d ' ' -f 1; }

# In a file that only this user reads: a password on a command line is everybody's.
umask 077
mkdir -p "$run"
{
    echo "user default off"
    echo "user apportion on #$(digest redis_password) ~rl:* resetchannels -@all $(cat "${REDIS_COMMANDS:-/redis/commands.acl}")"
    echo "user admin on #$(digest redis_admin_password) ~* &* +@all"
    echo "masteruser admin"
    printf 'masterauth "%s"\n' "$(cat "$secrets/redis_admin_password")"
} > "$run/users.conf"
chmod 600 "$run/users.conf"

exec redis-server "${REDIS_CONFIG:-/redis/redis.conf}" --include "$run/users.conf" --port "$port" --dir "$data" \
    --cluster-config-file "$data/nodes.conf" --cluster-announce-ip "$address" --protected-mode no \
    --maxmemory "${REDIS_MAXMEMORY:-0}"
