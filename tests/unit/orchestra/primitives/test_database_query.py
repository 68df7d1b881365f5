"""`database_query`: rows, and SQL made to write, to reach other files or to use up the machine."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from powerinfer.orchestra.primitives import database_query
from powerinfer.orchestra.primitives.primitive import Observation, Permissions, PrimitiveError
from primitive_calls import ScriptedWorker, call, run


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with two tables."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price REAL, picture BLOB);"
            "INSERT INTO item VALUES (1, 'ink', 2.5, x'0102'), (2, 'tea', 4, NULL);"
            "CREATE TABLE number AS WITH RECURSIVE n(i) AS "
            "(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60) SELECT i FROM n;"
        )
    return path


def _query(query: str, *databases: Path, worker: ScriptedWorker | None = None) -> Observation:
    permissions = Permissions(databases=databases)
    return run("database_query", call(query, ask=worker, permissions=permissions))


def test_rows(database: Path) -> None:
    wanted = '["name", "price", "picture"]\n["ink", 2.5, "<2 bytes>"]\n["tea", 4.0, null]'
    sql = "SELECT name, price, picture FROM item ORDER BY id"
    for query in (sql, f"shop.db: {sql};", f"{database}:\n{sql}"):
        assert _query(query, database) == Observation(wanted, untrusted=True)
    assert _query("PRAGMA table_info(number)", database).text.endswith('[0, "i", "", 0, null, 0]')
    rows = _query("SELECT i FROM number", database).text.splitlines()
    assert rows[50:] == ["[50]", "[more rows are left out]"]


def test_the_worker_writes_sql_for_a_question(database: Path) -> None:
    worker = ScriptedWorker("```sql\nSELECT max(price) FROM item\n```")
    assert (
        _query("What is the highest price?", database, worker=worker).text
        == '["max(price)"]\n[4.0]'
    )
    assert "CREATE TABLE item" in worker.messages[0]
    with pytest.raises(PrimitiveError, match="needs SQL that begins with SELECT or WITH"):
        _query("What is the highest price?", database)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT 1; DROP TABLE item", "one statement at a time"),
        ("WITH x AS (SELECT 1) DELETE FROM item", "not authorized"),
        ("PRAGMA journal_mode = WAL", "not authorized"),
        ("PRAGMA user_version = 5", "not authorized"),
        ("PRAGMA writable_schema = ON", "not authorized"),
        ("PRAGMA temp_store_directory = '/tmp'", "not authorized"),
        ("SELECT load_extension('/tmp/x.so')", "not authorized|prohibited|no such function"),
        ("SELECT fts3_tokenizer('simple')", "not authorized|no such function|prohibited"),
        ("SELECT writefile('/tmp/x', 'x')", "not authorized|no such function|prohibited"),
        ("SELECT zeroblob(1 << 30)", "too big"),
        ("SELECT hex(zeroblob(10000000))", "too big"),
        ("SELECT * FROM missing", "no such table"),
        ("SELECT " + "(" * 500 + "1" + ")" * 500, "too large|overflow|syntax|too deep"),
        ("SELECT '" + "x" * 30_000 + "'", "too large|too big"),
        ("select \ud800", "Incorrect number of bindings"),
        ("SELECT\0 1", "null character"),
    ],
)
def test_sql_that_is_refused(database: Path, sql: str, message: str) -> None:
    before = database.read_bytes()
    with pytest.raises(PrimitiveError, match=f"SQLite refuses the query: .*({message})") as raised:
        _query(sql, database)
    assert "\n" not in str(raised.value)
    assert database.read_bytes() == before
    assert list(database.parent.iterdir()) == [database]


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH '/tmp/other.db' AS other",
        "VACUUM INTO '/tmp/copy.db'",
        "INSERT INTO item VALUES (3, 'x', 1, NULL)",
        "CREATE TEMP TABLE x (i)",
    ],
)
def test_other_statements_from_a_worker_are_refused(database: Path, sql: str) -> None:
    with pytest.raises(
        PrimitiveError,
        match=r"SQLite refuses the query: (not authorized|authorization denied|too many)",
    ):
        _query("Do it.", database, worker=ScriptedWorker(sql))


def test_endless_queries_end(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_query, "_SECONDS", 0.2)
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    )
    with pytest.raises(PrimitiveError, match="the query takes too long"):
        _query(endless, database)


def test_memory_is_limited(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_query, "_MEMORY_BYTES", 96 << 20)
    blobs = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200) "
    with pytest.raises(PrimitiveError, match=r"too much memory|out of memory"):
        _query(blobs + "SELECT i, randomblob(8000000) AS b FROM n ORDER BY b", database)


def test_hostile_schemas_run_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hostile.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE VIEW item AS SELECT load_extension('/tmp/x.so') AS name")
    with pytest.raises(PrimitiveError, match=r"not authorized|unsafe use|no such function"):
        _query("SELECT name FROM item", path)


def test_a_closed_database_in_wal_mode_is_read_without_new_files(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert list(database.parent.iterdir()) == [database]
    assert _query("SELECT count(*) FROM item", database).text.endswith("[2]")
    assert list(database.parent.iterdir()) == [database]


def test_only_databases_that_are_allowed(database: Path) -> None:
    other = database.with_name("other.db")
    with pytest.raises(PrimitiveError, match="no database is allowed"):
        _query("SELECT 1")
    with pytest.raises(
        PrimitiveError, match=r"no database 'SELECT 1' is allowed; there are shop.db, "
    ):
        _query("SELECT 1", database, other)
    with pytest.raises(PrimitiveError, match=r"other.db cannot be opened: No such file"):
        _query("other.db: SELECT 1", database, other)
    with pytest.raises(PrimitiveError, match="cannot be opened: it is not a regular file"):
        _query("SELECT 1", Path("/dev/zero"))
    other.write_bytes(b"no database at all" * 100)
    with pytest.raises(PrimitiveError, match="file is not a database"):
        _query("other.db: SELECT * FROM item", database, other)
