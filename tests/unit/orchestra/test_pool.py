"""Pool files: what they say, and one line for what is wrong with them."""

from pathlib import Path

import pytest

from orchestra_cases import PRIMITIVES
from powerinfer.orchestra.pool import Cost, PoolError, default_pool, offers, read_pool
from powerinfer.orchestra.primitives.primitive import Permissions, Primitive

POOL = """
policy = "big"
[commands]
search = ["grep", "-r"]
[[worker]]
name = "tiny"
model = "tiny.gguf"
primitives = ["answer"]
cost = { seconds_per_token = 0.01 }
[[worker]]
name = "big"
model = "smollm2"
primitives = ["answer", "answer"]
[[worker]]
name = "cloud"
model = "gpt"
base_url = "https://example.org/v1"
api_key_env = "CLOUD_KEY"
timeout_s = 20
primitives = ["answer"]
[worker.cost]
price_per_million_tokens = 2
[[worker]]
name = "tools"
primitives = ["read", "send"]
"""


def read(tmp_path: Path, text: str) -> object:
    path = tmp_path / "pool.toml"
    path.write_text(text)
    return read_pool(path, PRIMITIVES)


def test_a_pool(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").touch()
    (tmp_path / "pool.toml").write_text(POOL)
    pool = read_pool(tmp_path / "pool.toml", PRIMITIVES)
    tiny, big, cloud, tools = pool.workers
    # A file beside the pool, or else a name.
    assert (tiny.model, big.model) == (str(tmp_path / "tiny.gguf"), "smollm2")
    assert tiny.cost == Cost(seconds_per_token=0.01)
    assert big.primitives == ("answer",)
    assert (cloud.is_elsewhere, cloud.timeout_s, cloud.cost.price(0, 500_000)) == (True, 20, 1)
    assert tools.is_tool
    assert pool.policy == "big"
    assert pool.commands == {"search": ("grep", "-r")}
    assert pool["cloud"] is cloud


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[[worker]]", "[[worker", "not TOML"),
        (POOL, "", "has no worker"),
        ('name = "big"', 'name = "tiny"', "two workers 'tiny'"),
        ('name = "big"', 'name = "b\\"ig"', "worker[1].name has other characters"),
        ('policy = "big"', 'policy = "cloud"', "policy must be a model of this machine: tiny, big"),
        ('policy = "big"', "polcy = 1", "polcy is unknown: use worker, policy, commands"),
        ("timeout_s", "timeot_s", "worker[2].timeot_s is unknown"),
        ("timeout_s = 20", "timeout_s = -1", "worker[2].timeout_s must be a finite number"),
        ('["read", "send"]', '["read", "web"]', "is 'web', not a primitive: answer, read, send"),
        ('["read", "send"]', '["answer"]', "is 'answer', which needs a model"),
        ('["read", "send"]', "[]", "worker[3].primitives is not a list of 1 to 3 items"),
        ('primitives = ["read", "send"]', "", "has no field 'primitives'"),
        ("seconds_per_token = 0.01", "seconds = 1", "worker[0].cost.seconds is unknown"),
        ("seconds_per_token = 0.01", "seconds_per_token = nan", "must be a finite number"),
        ('"https://', '"ftp://', "worker[2].base_url must begin with http"),
        ("https://", "https://me:secret@", "must not contain a name and password"),
        ('model = "gpt"', "", "answer', which needs a model"),
        ('"CLOUD_KEY"', '"sk-12 34"', "must be the name of an environment variable, not a key"),
        ('model = "smollm2"', 'model = "x"\napi_key_env = "K"', "is for a worker with a base_url"),
    ],
)
def test_what_is_wrong(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert old in POOL
    with pytest.raises(PoolError) as caught:
        read(tmp_path, POOL.replace(old, new, 1))
    assert problem in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "pool.toml"))
    assert "\n" not in str(caught.value)


def test_a_pool_without_a_model_of_this_machine(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="no worker is a model of this machine"):
        read(tmp_path, '[[worker]]\nname = "tools"\nprimitives = ["read"]')
    with pytest.raises(PoolError, match="No such file"):
        read_pool(tmp_path / "none.toml", PRIMITIVES)


def test_an_endless_file_is_no_pool() -> None:
    with pytest.raises(PoolError, match="larger than 1 MiB"):
        read_pool(Path("/dev/zero"), PRIMITIVES)


def test_the_default_pool() -> None:
    pool = default_pool("x.gguf", PRIMITIVES)
    assert [(each.name, each.primitives) for each in pool.workers] == [
        ("model", ("answer",)),
        ("tools", ("read", "send")),
    ]
    assert pool.policy == "model"


def test_what_was_not_allowed_is_not_offered() -> None:
    async def run(_: object) -> None: ...

    names = (
        "execute_python",
        "read_document",
        "database_query",
        "call_api",
        "search",
    )
    known = {name: Primitive(name, "", False, False, run) for name in names}  # type: ignore[arg-type]
    pool = default_pool(None, known)
    nothing = offers(pool, known, Permissions())
    assert nothing["tools"] == ()
    everything = Permissions(
        allowed=frozenset({"execute_python"}),
        documents=(Path("x"),),
        databases=(Path("y"),),
        hosts=frozenset({"example.org"}),
        commands={"grep": ("grep",)},
    )
    assert offers(pool, known, everything)["tools"] == names
