"""Databases of a test's PostgreSQL: made, emptied and used again, dropped."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import Engine, text

KEEPER = "keeper_of_tests"  # the role whose stores are
WITH_TABLES = "current"  # the database that others are copied from

# All that a test can leave behind but rows: objects, rights, settings.
SCHEMA = """
select md5(string_agg(said, ',' order by said)) from (
    select
        row(relname, relkind, relacl, reloptions, relrowsecurity, relhastriggers, relnatts)::text
            as said
    from pg_class where relnamespace = 'public'::regnamespace
    union all select row(nspname, nspacl)::text from pg_namespace
    where nspname not like 'pg_toast%' and nspname not like 'pg_temp%'
    union all select row(proname, proacl)::text from pg_proc
    where pronamespace = 'public'::regnamespace
    union all select row(conname, convalidated)::text from pg_constraint
    where connamespace = 'public'::regnamespace
    union all select row(defaclrole, defaclacl)::text from pg_default_acl
    union all select row(setrole, setconfig)::text from pg_db_role_setting s
    join pg_database d on d.oid = s.setdatabase
    where d.datname = current_database()
    union all
    select row(coalesce(datacl, acldefault('d', datdba)), datconnlimit, datallowconn)::text
    from pg_database
    where datname = current_database()
    union all select version_num from alembic_version
) as objects
"""
# One that was given rows and lost them has statistics and a sequence that went on.
EMPTY = """
do $$
declare
    name text;
    filled boolean;
begin
    for name in
        select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'
    loop
        execute format('select exists (select from %I)', name) into filled;
        if filled and name <> 'alembic_version' then
            execute format('truncate %I restart identity cascade', name);
        end if;
    end loop;
    for name in
        select sequencename from pg_sequences where schemaname = 'public' and last_value is not null
    loop
        execute format('alter sequence %I restart', name);
    end loop;
    delete from pg_statistic where starelid in (
        select oid from pg_class where relnamespace = 'public'::regnamespace
    );
end
$$
"""
END_OTHERS = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid()
"""


class SpareDatabases:
    """Databases with tables and no row; copying one costs a tenth of a second
    and emptying one a hundredth.
    """

    def __init__(self, admin: Engine) -> None:
        self.admin = admin
        self.names: list[str] = []
        with self._inside(WITH_TABLES) as conn:
            self.schema = self._schema(conn)

    @contextmanager
    def one(self) -> Iterator[str]:
        """Lend a database; it is used again when its schema is as it was."""
        if self.names:
            name = self.names.pop()
        else:
            name = f"t{uuid.uuid4().hex}"
            make_database(self.admin, name, WITH_TABLES)
        yield name
        if self._emptied(name):
            self.names.append(name)
        else:
            drop_database(self.admin, name)

    def _emptied(self, name: str) -> bool:
        """Remove the rows of a database; False when more than rows was changed, or it is gone."""
        try:
            with self._inside(name) as conn:
                conn.execute(END_OTHERS)
                if self._schema(conn) != self.schema:
                    return False
                conn.execute(EMPTY)
        except psycopg.OperationalError:
            return False
        return True

    def _schema(self, conn: psycopg.Connection) -> str:
        (found,) = conn.execute(SCHEMA).fetchone() or ("",)
        return str(found)

    def _inside(self, name: str) -> psycopg.Connection:
        url = self.admin.url
        return psycopg.connect(
            dbname=name, host=url.query["host"], user=url.username, autocommit=True
        )


def make_database(admin: Engine, name: str, template: str) -> None:
    """Copy a database."""
    with admin.connect() as conn:
        conn.execute(
            text(f"create database {name} owner {KEEPER} template {template} strategy file_copy")
        )


def drop_database(admin: Engine, name: str) -> None:
    """Drop a database, whoever is connected to it."""
    with admin.connect() as conn:
        conn.execute(text(f"drop database if exists {name} with (force)"))


def url_of(admin: Engine, name: str) -> str:
    """Return the URL of a database for the role whose store it is."""
    return admin.url.set(drivername="postgresql", database=name, username=KEEPER).render_as_string(
        hide_password=False
    )
