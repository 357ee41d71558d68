"""How long the remedies of one array take: 76 rules, 1,000 arrays whose specs they may change.

The same for 76 patterns and 1,000 paths under each dialect of paths, on an audit that nobody has
asked for a remedy yet.

Two models: 12 kinds of arrays in 84 layers, and 1,000 arrays with names at random, of which hardly
two are alike. Some wishes have an answer of one edit, some would need two, and some have none.
"""

from __future__ import annotations

import random
import time

import shardviz as sv
from tests.bench.timing import Table, best, text


def processor_seconds(run) -> float:
    """The least processor time of three calls: other load makes each of them late."""
    times = []
    for _ in range(3):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


MESH = sv.mesh(data=8, fsdp=4, tensor=4, expert=2, stage=1, context=1)
AXES = ("data", "fsdp", "tensor", "expert", "stage", "context", ("data", "fsdp"), None)
LOGICAL = [f"name{i}" for i in range(40)]
LIMIT = 0.2  # seconds


def table(rng: random.Random) -> sv.Rules:
    """76 rules for 40 names, as many as MaxText's base.yml has."""
    return sv.rules([(rng.choice(LOGICAL), rng.choice(AXES)) for _ in range(76)])


def rows(rng: random.Random, kinds: int) -> list[tuple]:
    """1,000 arrays of so many kinds."""
    some = [
        (rng.sample(LOGICAL, n), tuple(rng.choice((1024, 4096, 510)) for _ in range(n)))
        for n in (rng.randint(1, 4) for _ in range(kinds))
    ]
    return [(f"layer{i // kinds}/w{i % kinds}", some[i % kinds][1], some[i % kinds][0])
            for i in range(1000)]  # fmt: skip


def path_table(rng: random.Random) -> list[tuple]:
    """76 patterns for some of the paths, the last one for all of them."""
    specs = ((), ("data",), (None, "tensor"), ("fsdp", "tensor"), (("data", "fsdp"),), ("tensr",))
    forms = (
        "layers/{0}/{1}/kernel",
        "{1}/kernel",
        ".*{0}/{1}/.*",
        r"layers/\d+/{1}/.*",
        "{1}_/bias",
    )
    made = {
        rng.choice(forms).format(rng.randrange(84), f"block{rng.randrange(12)}"): rng.choice(specs)
        for _ in range(200)
    }
    return [*list(made.items())[:75], (".*", ())]


def path_rows(rng: random.Random) -> list[sv.ArraySpec]:
    """1,000 arrays in 84 layers."""
    paths = [f"params/layers/{i // 12}/block{i % 12}/kernel" for i in range(1000)]
    return [sv.array(p, tuple(rng.choice((1024, 4096, 510)) for _ in range(2))) for p in paths]


def path_remedies(report: Table, dialect: str) -> None:
    """The slowest of some wishes under a dialect of paths."""
    rng, worst = random.Random(dialect), dict[str, float]()

    def asked_first(row, want) -> None:
        row.audit.__dict__.pop("arrays", None)  # and what was matched for other remedies
        sv.remedies(row, want)

    for _ in range(3):
        audit = sv.audit(path_rows(rng), path_table(rng), MESH, dialect="regex").under(dialect)
        for row in rng.sample(audit.rows, 4):
            for name, want in wishes(row):
                seconds = processor_seconds(lambda r=row, w=want: asked_first(r, w))
                worst[name] = max(worst.get(name, 0.0), seconds)
    for name, seconds in worst.items():
        report.within(f"1,000 paths, {dialect}: {name}, slowest of 12", LIMIT, seconds)


def wishes(row) -> list[tuple[str, str]]:
    """What to want of a row, with a word for each."""
    names = ["None"] * len(row.shape)
    first, last = ["data", *names[1:]], [*names[:-1], "tensor"]
    both = ["(data, fsdp)", *names[1:-1], "tensor"][: len(names)]
    size = row.array.bytes
    return [
        ("first over data", f"P({', '.join(repr(n) if n != 'None' else n for n in first)})"),
        ("last over tensor", f"P({', '.join(repr(n) if n != 'None' else n for n in last)})"),
        ("two dimensions", ", ".join(both)),
        ("split", "split 0"),
        ("1/64 of the bytes", f"{size // 64} B"),
    ]


def main() -> int:
    """Prints the table; returns how many targets were missed."""
    report = Table()
    for kinds, what in ((12, "1,000 arrays of 12 kinds"), (1000, "1,000 arrays, all different")):
        rng = random.Random(kinds)
        worst: dict[str, float] = {}
        for _ in range(3):
            audit = sv.audit(rows(rng, kinds), table(rng), MESH)
            for row in rng.sample(audit.rows, 4):
                for name, want in wishes(row):
                    seconds = processor_seconds(lambda r=row, w=want: sv.remedies(r, w))
                    worst[name] = max(worst.get(name, 0.0), seconds)
        for name, seconds in worst.items():
            report.within(f"{what}: {name}, slowest of 12", LIMIT, seconds)
    for dialect in ("regex", "keras"):
        path_remedies(report, dialect)
    names = LOGICAL[:3]
    found = sv.resolve(names, table(random.Random(1)), mesh=MESH, shape=(510, 510, 510))
    print(f"  explain() of one array under 76 rules: {text(best(found.explain))}")
    return report.missed


if __name__ == "__main__":
    main()
