-- what a role owns
select pg_describe_object(d.classid, d.objid, 0)
from pg_shdepend d
where d.refclassid = 'pg_authid'::regclass and d.refobjid = :role and d.deptype = 'o'
    and d.dbid in (0, (select oid from pg_database where datname = current_database()))
order by 1 limit 1

-- schemas with what a role was granted
select distinct n.nspname
from pg_shdepend d
left join pg_class c on d.classid = 'pg_class'::regclass and c.oid = d.objid
left join pg_proc p on d.classid = 'pg_proc'::regclass and p.oid = d.objid
join pg_namespace n on n.oid = coalesce(c.relnamespace, p.pronamespace, d.objid)
where d.refclassid = 'pg_authid'::regclass and d.deptype = 'a'
    and d.refobjid = (select oid from pg_roles where rolname = :name)
    and d.dbid = (select oid from pg_database where datname = current_database())

-- roles that have something here
select r.rolname
from pg_roles r
join pg_database here on here.datname = current_database()
where r.rolname <> :name and r.rolname !~ '^pg_' and not r.rolsuper
    and not exists (
        select 1 from pg_db_role_setting s
        where s.setrole = r.oid and s.setdatabase = 0 and :mark = any (s.setconfig)
    )
    and (
        r.oid = here.datdba
        or exists (select 1 from pg_auth_members m where m.member = r.oid)
        or exists (
            select 1 from pg_shdepend d
            where d.refclassid = 'pg_authid'::regclass and d.refobjid = r.oid and d.dbid = here.oid
        )
    )
order by r.rolname

-- what a role could do beyond reading
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
        or p.pronamespace = 'pg_catalog'::regnamespace and p.proname ~ :writing)
    and has_schema_privilege(:name, p.pronamespace, 'USAGE') and has_function_privilege(:name, p.oid, 'EXECUTE')
order by 1

-- functions that write
select string_agg(oid::regprocedure::text, ', ' order by oid) from pg_proc
where pronamespace = 'pg_catalog'::regnamespace and proname ~ :writing
