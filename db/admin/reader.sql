-- names
select quote_ident(r.rolname) as reader, quote_ident(current_database()) as database,
    quote_ident(current_schema()) as schema,
    case when r.rolconnlimit < 0 then 20 else r.rolconnlimit end as connections,
    (select string_agg(format('revoke all on all %s in schema %I from %I', kind, nspname, r.rolname), ';')
        from pg_namespace, unnest(array['tables', 'sequences', 'routines']) as kind
        where nspname !~ '^pg_' and nspname <> 'information_schema') as revoke_objects,
    (select string_agg(format('revoke all on schema %I from %I', nspname, r.rolname), ';')
        from pg_namespace where nspname !~ '^pg_') as revoke_schemas,
    (select string_agg(quote_ident(owner), ', ') from (
        select distinct tableowner as owner from pg_tables where schemaname = current_schema()
    ) as o) as owners,
    (select string_agg(quote_ident(w.rolname), ', ') from pg_roles w
        where w.rolname <> r.rolname and w.rolname !~ '^pg_' and (w.rolsuper or exists (
            select 1 from pg_class c
            where c.relkind in ('r', 'p') and c.relnamespace <> 'pg_catalog'::regnamespace
                and has_any_column_privilege(w.oid, c.oid, 'INSERT, UPDATE')
        ))) as writers,
    (select string_agg(oid::regprocedure::text, ', ' order by oid) from pg_proc
        where pronamespace = 'pg_catalog'::regnamespace
            and proname ~ '^(lo_.*|loread|lowrite|pg_(try_)?advisory_.*|pg_logical_emit_message|pg_export_snapshot)$'
    ) as functions
from pg_roles r
where r.rolname = :name

-- grants
{revoke_objects}; {revoke_schemas}; revoke all on database {database} from {reader};
-- What PUBLIC loses, those who write here keep. Before PostgreSQL 15, PUBLIC may make tables.
grant usage, create on schema {schema} to {owners};
grant temporary on database {database} to {writers};
grant execute on function {functions} to {writers};
revoke temporary on database {database} from public;
revoke execute on function {functions} from public;
revoke create on schema {schema} from public;
grant connect on database {database} to {reader};
grant usage on schema {schema} to {reader};
grant select on {readable} to {reader};
-- Defaults, the first two of which a reader can change.
alter role {reader} in database {database} set default_transaction_read_only = on;
alter role {reader} in database {database} set statement_timeout = '{limit_s}s';
alter role {reader} in database {database} set search_path = {schema};
-- A setting for one database takes precedence over one for all databases.
alter role {reader} in database {database} set session_preload_libraries from current;
alter role {reader} set session_preload_libraries = '{library}';
alter role {reader} set temp_file_limit = '1GB';
alter role {reader} login connection limit {connections};

-- what a role could do beyond reading
select 'be ' || power.what from pg_roles r
cross join lateral (values
    ('a superuser', r.rolsuper), ('allowed to make roles', r.rolcreaterole),
    ('allowed to make databases', r.rolcreatedb), ('allowed to replicate', r.rolreplication),
    ('allowed to bypass row security', r.rolbypassrls)
) as power (what, holds)
where r.rolname = :name and power.holds
union all
select 'act as ' || g.rolname from pg_auth_members m
join pg_roles r on r.oid = m.member
join pg_roles g on g.oid = m.roleid
where r.rolname = :name
union all
select 'change its own ' || pg_describe_object(d.classid, d.objid, 0) from pg_shdepend d
join pg_roles r on r.oid = d.refobjid
where d.refclassid = 'pg_authid'::regclass and r.rolname = :name and d.deptype = 'o'
    and d.dbid in (0, (select oid from pg_database where datname = current_database()))
union all
select 'make temporary tables' where has_database_privilege(:name, current_database(), 'TEMPORARY')
union all
select 'make schemas' where has_database_privilege(:name, current_database(), 'CREATE')
union all
select 'make tables in ' || nspname from pg_namespace
where nspname !~ '^pg_' and has_schema_privilege(:name, oid, 'CREATE')
union all
select 'use the table ' || c.relname from pg_class c
where c.relnamespace = (select oid from pg_namespace where nspname = current_schema())
    and c.relkind in ('r', 'p', 'f', 'm')
    and (has_any_column_privilege(:name, c.oid, 'SELECT') and c.relname <> all (:readable)
        or has_table_privilege(:name, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
        or has_any_column_privilege(:name, c.oid, 'INSERT, UPDATE, REFERENCES'))
union all
select 'change the view ' || c.relname from pg_class c
where c.relnamespace = (select oid from pg_namespace where nspname = current_schema()) and c.relkind = 'v'
    and has_table_privilege(:name, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
union all
select 'call ' || p.oid::regprocedure from pg_proc p
where (p.prosecdef and p.pronamespace <> 'pg_catalog'::regnamespace
        or p.pronamespace = 'pg_catalog'::regnamespace
        and p.proname ~ '^(lo_.*|loread|lowrite|pg_(try_)?advisory_.*|pg_logical_emit_message|pg_export_snapshot)$')
    and has_schema_privilege(:name, p.pronamespace, 'USAGE') and has_function_privilege(:name, p.oid, 'EXECUTE')
order by 1
