-- sqlite: bytes of a table with its indexes
select sum(s.pgsize) as bytes
from sqlite_master m
join dbstat s on s.name = m.name
where m.tbl_name = :name and s.aggregate = true

-- sqlite: whether bytes of a table are known
select count(*) from pragma_module_list where name = 'dbstat'

-- sqlite: bytes of the store
select page_count * page_size from pragma_page_count(), pragma_page_size()

-- sqlite: bytes of the store that hold nothing
select freelist_count * page_size from pragma_freelist_count(), pragma_page_size()

-- postgresql: bytes of a table with its indexes
select pg_total_relation_size(cast(:name as regclass)) as bytes

-- postgresql: whether bytes of a table are known
select 1

-- postgresql: bytes of the store
select pg_database_size(current_database())

-- postgresql: bytes of the store that hold nothing
select 0
