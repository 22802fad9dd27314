-- What clients of Postgres ask the catalogue for. The views show the tables of the lake alone, and as tables.

CREATE VIEW main.pg_namespace AS SELECT oid, nspname, nspowner, NULL AS nspacl FROM pg_catalog.pg_namespace
    WHERE nspname IN ('bronze', 'silver', 'gold') UNION ALL SELECT 11, 'pg_catalog', 10, NULL;
CREATE VIEW main.pg_class AS SELECT * REPLACE ('r' AS relkind, 10 AS relowner, 0 AS reltablespace, NULL::VARCHAR[] AS reloptions),
    false AS relforcerowsecurity
    FROM pg_catalog.pg_class WHERE relkind = 'v'
    AND relnamespace IN (SELECT oid FROM main.pg_namespace WHERE nspname IN ('bronze', 'silver', 'gold'));
CREATE VIEW main.pg_tables AS SELECT n.nspname AS schemaname, c.relname AS tablename, 'sluice' AS tableowner,
    NULL AS tablespace, false AS hasindexes, false AS hasrules, false AS hastriggers, false AS rowsecurity FROM
    main.pg_class c JOIN main.pg_namespace n ON n.oid = c.relnamespace;
CREATE VIEW main.pg_views AS SELECT * FROM pg_catalog.pg_views WHERE false;
CREATE VIEW main.pg_database AS SELECT 1 AS oid, 'lake' AS datname, 10 AS datdba, 6 AS encoding, 'c' AS
    datlocprovider, 'C' AS datcollate, 'C' AS datctype, false AS datistemplate, true AS datallowconn, -1 AS
    datconnlimit, NULL AS datacl, NULL AS daticulocale, NULL AS datcollversion, 0 AS dattablespace;
CREATE VIEW main.pg_roles AS SELECT 10 AS oid, 'sluice' AS rolname, false AS rolsuper, true AS rolcanlogin,
    false AS rolcreaterole, false AS rolcreatedb, true AS rolinherit, false AS rolreplication, -1 AS rolconnlimit,
    NULL::TIMESTAMPTZ AS rolvaliduntil, false AS rolbypassrls;
CREATE VIEW main.pg_user AS SELECT 'sluice' AS usename, 10 AS usesysid, false AS usesuper;
CREATE VIEW main.pg_inherits AS SELECT 0 AS inhrelid, 0 AS inhparent, 0 AS inhseqno, false AS inhdetachpending
    WHERE false;
CREATE VIEW main.pg_policy AS SELECT 0 AS oid, '' AS polname, 0 AS polrelid, '' AS polcmd, true AS
    polpermissive, [0] AS polroles, '' AS polqual, '' AS polwithcheck WHERE false;
CREATE VIEW main.pg_statistic_ext AS SELECT 0 AS oid, 0 AS stxrelid, '' AS stxname, 0 AS stxnamespace, [''] AS
    stxkind, [0] AS stxkeys, 0 AS stxstattarget WHERE false;
CREATE VIEW main.pg_publication AS SELECT 0 AS oid, '' AS pubname, false AS puballtables WHERE false;
CREATE VIEW main.pg_publication_rel AS SELECT 0 AS oid, 0 AS prpubid, 0 AS prrelid, '' AS prqual, [0] AS
    prattrs WHERE false;
CREATE VIEW main.pg_publication_namespace AS SELECT 0 AS oid, 0 AS pnpubid, 0 AS pnnspid WHERE false;
CREATE VIEW main.pg_foreign_table AS SELECT 0 AS ftrelid, 0 AS ftserver, [''] AS ftoptions WHERE false;
CREATE VIEW main.pg_foreign_server AS SELECT 0 AS oid, '' AS srvname WHERE false;
CREATE VIEW main.pg_trigger AS SELECT 0 AS oid, 0 AS tgrelid, '' AS tgname, false AS tgisinternal, 'O' AS
    tgenabled WHERE false;
CREATE VIEW main.pg_range AS SELECT 0 AS rngtypid, 0 AS rngsubtype WHERE false;
CREATE VIEW main.pg_matviews AS SELECT '' AS schemaname, '' AS matviewname WHERE false;
CREATE VIEW main.pg_collation AS SELECT 100 AS oid, 'default' AS collname, 11 AS collnamespace;
CREATE VIEW _catalog.tables AS SELECT * REPLACE ('lake' AS table_catalog, 'BASE TABLE' AS table_type)
    FROM information_schema.tables WHERE table_schema IN ('bronze', 'silver', 'gold');
CREATE VIEW _catalog.columns AS SELECT * REPLACE ('lake' AS table_catalog) FROM information_schema.columns
    WHERE table_schema IN ('bronze', 'silver', 'gold');
CREATE VIEW _catalog.schemata AS SELECT * REPLACE ('lake' AS catalog_name) FROM information_schema.schemata
    WHERE schema_name IN ('bronze', 'silver', 'gold');
CREATE VIEW _catalog.views AS SELECT 'lake' AS table_catalog, '' AS table_schema, '' AS table_name, '' AS
    view_definition WHERE false;
CREATE MACRO main.version() AS 'PostgreSQL 15.0 (Sluice, DuckDB)';
CREATE MACRO main.pg_get_userbyid(role) AS 'sluice';
CREATE MACRO main.session_user() AS 'sluice';
CREATE MACRO main.current_catalog() AS 'lake';
CREATE MACRO main.pg_backend_pid() AS 0;
CREATE MACRO main.pg_is_in_recovery() AS false;
CREATE MACRO main.pg_encoding_to_char(encoding) AS 'UTF8';
CREATE MACRO main.set_config(name, value, is_local) AS value;
CREATE MACRO main.quote_ident(name) AS '"' || replace(name, '"', '""') || '"';
CREATE MACRO main.pg_relation_is_publishable(relation) AS false;
CREATE MACRO main.pg_get_statisticsobjdef_columns(id) AS NULL;
CREATE MACRO main.pg_get_partkeydef(relation) AS NULL;
CREATE MACRO main.pg_get_indexdef(id) AS NULL, (id, number, is_pretty) AS NULL;
CREATE MACRO main.pg_total_relation_size(relation) AS 0;
CREATE MACRO main.pg_table_size(relation) AS 0;
CREATE MACRO main.pg_relation_size(relation) AS 0;
CREATE MACRO main.shobj_description(id, catalog) AS NULL;
CREATE MACRO main.has_schema_privilege(a, b) AS true, (a, b, c) AS true;
CREATE MACRO main.has_database_privilege(a, b) AS true, (a, b, c) AS true;
CREATE MACRO main.has_column_privilege(a, b, c) AS true, (a, b, c, d) AS true;
CREATE MACRO main._oid_of(name) AS CASE replace(name, 'pg_catalog.', '') WHEN 'pg_class' THEN 1259 WHEN 'pg_type' THEN 1247
    WHEN 'pg_proc' THEN 1255 WHEN 'pg_namespace' THEN 2615 WHEN 'pg_constraint' THEN 2606 ELSE (SELECT any_value(c.oid) FROM main.pg_class c JOIN main.pg_namespace n ON
    n.oid = c.relnamespace WHERE CAST(c.oid AS VARCHAR) = name OR replace(name, '"', '') IN (n.nspname || '.' ||
    c.relname, CASE n.nspname WHEN 'gold' THEN c.relname END)) END;
-- `_comments` is made before: what declarations say of tables and, with a `column`, of columns.
CREATE VIEW main.pg_description AS SELECT c.oid AS objoid, 1259 AS classoid, coalesce(a.attnum, 0) AS objsubid, k.text AS description
    FROM _catalog._comments k JOIN main.pg_namespace n ON n.nspname = k.layer JOIN main.pg_class c ON c.relnamespace = n.oid AND
    c.relname = k.name LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND lower(a.attname) = lower(k."column")
    WHERE k."column" IS NULL OR a.attnum IS NOT NULL;
CREATE VIEW main.pg_stat_user_tables AS SELECT c.oid AS relid, n.nspname AS schemaname, c.relname, NULL::BIGINT AS n_live_tup
    FROM main.pg_class c JOIN main.pg_namespace n ON n.oid = c.relnamespace;
CREATE MACRO main.obj_description(id) AS (SELECT any_value(description) FROM main.pg_description WHERE objoid = id AND objsubid = 0),
    (id, catalog) AS (SELECT any_value(description) FROM main.pg_description WHERE objoid = id AND objsubid = 0
        AND catalog IN ('pg_class', 'pg_catalog.pg_class'));
CREATE MACRO main.col_description(id, number) AS (SELECT any_value(description) FROM main.pg_description WHERE objoid = id
    AND objsubid = number AND number > 0);
CREATE MACRO main.to_regclass(name) AS main._oid_of(name);
CREATE VIEW main.pg_auth_members AS SELECT 0 AS oid, 0 AS roleid, 0 AS member, 0 AS grantor, false AS admin_option
    WHERE false;
CREATE MACRO main.pg_get_expr(expression, relation) AS NULL, (expression, relation, is_pretty) AS NULL;
CREATE MACRO main.array_upper(list, dimension) AS len(list);
CREATE MACRO main.array_lower(list, dimension) AS CASE WHEN len(list) > 0 THEN 1 END;
CREATE VIEW main.pg_extension AS SELECT 0 AS oid, '' AS extname, 0 AS extnamespace, '' AS extversion WHERE false;
-- `_types` is made before: the types that values have when they are sent, with the names that Postgres prints.
CREATE VIEW main.pg_type AS SELECT t.oid, t.typname, 11 AS typnamespace, 10 AS typowner, t.typlen, t.typlen > 0 AS typbyval,
    'b' AS typtype, CASE WHEN t.typelem > 0 THEN 'A' ELSE 'U' END AS typcategory, false AS typispreferred, true AS typisdefined,
    ',' AS typdelim, 0 AS typrelid, t.typelem, t.typarray, '' AS typinput, '' AS typoutput, '' AS typreceive, '' AS typsend,
    'i' AS typalign, 'p' AS typstorage, false AS typnotnull, 0 AS typbasetype, -1 AS typtypmod, 0 AS typndims, 0 AS typcollation,
    NULL AS typdefault, NULL AS typdefaultbin, NULL AS typacl, 0 AS typsubscript
    FROM (SELECT DISTINCT ON (oid) * FROM _catalog._types) t;
CREATE MACRO main.format_type(id, modifier) AS (SELECT any_value(printed) FROM _catalog._types WHERE oid = id);
CREATE MACRO main.to_regtype(name) AS (SELECT any_value(oid) FROM _catalog._types WHERE typname = name OR printed = name);
CREATE MACRO main.pg_get_serial_sequence(relation, name) AS NULL;
CREATE MACRO main.pg_get_function_result(id) AS NULL;
CREATE MACRO main.pg_get_function_arguments(id) AS NULL;
CREATE MACRO main._type_of(kind) AS coalesce(
    (SELECT any_value(oid) FROM _catalog._types WHERE duckdb = kind),
    CASE WHEN kind LIKE 'DECIMAL%' THEN 1700 WHEN kind LIKE 'TIMESTAMP\_%' ESCAPE '\' THEN 1114
        WHEN kind LIKE '%]' OR kind LIKE '%)' THEN 114 ELSE 25 END);
CREATE VIEW main.pg_attribute AS SELECT a.* REPLACE (main._type_of(c.data_type) AS atttypid, -1 AS atttypmod, -1 AS attlen,
        '' AS attidentity, '' AS attgenerated, '' AS attstorage, '' AS attcompression, NULL::VARCHAR[] AS attacl,
        NULL::VARCHAR[] AS attoptions, NULL::VARCHAR[] AS attfdwoptions)
    FROM pg_catalog.pg_attribute a JOIN duckdb_columns() c ON c.table_oid = a.attrelid AND c.column_name = a.attname
    WHERE a.attrelid IN (SELECT oid FROM main.pg_class);
CREATE VIEW main.pg_constraint AS SELECT * REPLACE ([0] AS conkey, [0] AS confkey) FROM pg_catalog.pg_constraint WHERE false;
CREATE MACRO main._pg_expandarray(list) AS {'x': 0, 'n': 0};
CREATE VIEW main.pg_attrdef AS SELECT * FROM pg_catalog.pg_attrdef WHERE false;
CREATE VIEW main.pg_index AS SELECT *, false AS indnullsnotdistinct FROM pg_catalog.pg_index WHERE false;
CREATE VIEW main.pg_opclass AS SELECT 0 AS oid, '' AS opcname, true AS opcdefault, 0 AS opcmethod WHERE false;
-- The formats are those of DuckDB by then (see `dialect.with_formats`).
CREATE MACRO main.to_timestamp(seconds) AS make_timestamptz(CAST(seconds * 1000000 AS BIGINT)),
    (text, format) AS CAST(strptime(text, format) AS TIMESTAMPTZ);
CREATE MACRO main.to_date(text, format) AS CAST(strptime(text, format) AS DATE);
CREATE MACRO main.to_char(time, format) AS strftime(time, format);
