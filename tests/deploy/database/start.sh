# Makes the database that its variables name, once, and serves it; the whole of it as `postgres`.
set -eu
if [ "$(id -u)" = 0 ]; then
    chown postgres:postgres /var/lib/postgresql/data
    exec setpriv --reuid postgres --regid postgres --clear-groups -- sh "$0"
fi
export PGDATA=/var/lib/postgresql/data
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
if [ ! -e "$PGDATA/PG_VERSION" ]; then
    printf %s "$POSTGRES_PASSWORD" > /tmp/password
    initdb --no-sync --encoding=UTF8 --username="$POSTGRES_USER" --auth=scram-sha-256 --pwfile=/tmp/password
    rm /tmp/password
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB" | postgres --single postgres
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp
