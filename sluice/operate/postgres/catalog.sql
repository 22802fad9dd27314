-- What clients of Postgres ask the catalogue for. The views show the tables of the lake alone, and as tables.

CREATE SCHEMA _catalog;
CREATE VIEW main.pg_namespace AS SELECT oid, nspname, nspowner, NULL AS nspacl FROM pg_catalog.pg_namespace
    WHERE nspname IN ('bronze', 'silver', 'gold', 'pg_catalog', 'information_schema');
CREATE VIEW main.pg_class AS SELECT * REPLACE ('r' AS relkind, 10 AS relowner, 0 AS reltablespace),
    false AS relrowsecurity, false AS relforcerowsecurity, 'd' AS relreplident, false AS relispartition
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
CREATE VIEW main.pg_attribute AS SELECT a.* FROM pg_catalog.pg_attribute a WHERE attrelid IN (SELECT oid FROM
    main.pg_class);
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
CREATE MACRO main._oid_of(name) AS (SELECT any_value(c.oid) FROM main.pg_class c JOIN main.pg_namespace n ON
    n.oid = c.relnamespace WHERE CAST(c.oid AS VARCHAR) = name OR replace(name, '"', '') IN (n.nspname || '.' ||
    c.relname, CASE n.nspname WHEN 'gold' THEN c.relname END));
CREATE MACRO main.to_regclass(name) AS main._oid_of(name);
