# SPDX-License-Identifier: Apache-2.0
"""psum_start: sums that are under way while the program goes on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from failing import all_raise, nothing_lingers
from jax import export, lax
from jax.sharding import PartitionSpec as P
from ranks import environment, run_alone, run_ranks
from world import HOWS, World

pytestmark = pytest.mark.ours
smddp_jax = pytest.importorskip("smddp_jax")
lowering = pytest.importorskip("smddp_jax.collectives.lowering")
start = pytest.importorskip("smddp_jax.collectives.start")

psum_start = smddp_jax.psum_start
ROWS = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)
WHOLE = ROWS.sum(0)


@pytest.fixture(params=HOWS)
def world(request) -> World:
    return World(request.param, jax.devices())


@pytest.fixture
def line() -> World:
    return World("checked", jax.devices())


def under_way(world: World, f: Callable, *args: Any) -> tuple[int, int, int]:
    """How many sums a program starts and ends, and how many it does at once."""
    text = world.mapped(f).lower(*world.put(args)).as_text()
    calls = re.findall(r"custom_call @smddp_all_reduce(\w*)\(", text)
    return calls.count("_start"), calls.count("_done"), calls.count("")


def test_a_tree_is_what_psum_makes_of_it(world: World) -> None:
    def tree(x):
        return {
            "f": x,
            "i": x.astype(jnp.int32),
            "b": x > 40,
            "h": [x[:5].astype(jnp.bfloat16), x[:0]],
            "c": 2,
            "none": None,
        }

    got = world.each(lambda x: psum_start(tree(x), "i").done(), ROWS)
    want = world.each(lambda x: smddp_jax.psum(tree(x), "i"), ROWS)
    assert jax.tree.structure(got.tree) == jax.tree.structure(want.tree)
    for one, other in zip(
        jax.tree.leaves(got.tree), jax.tree.leaves(want.tree), strict=True
    ):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.astype(np.float32), other.astype(np.float32))


@pytest.mark.parametrize("count", [12, 300_000])  # XLA runs small programs in order
def test_several_are_under_way_and_end_in_any_order(world: World, count: int) -> None:
    def f(x):
        started = [psum_start(x * n, "i") for n in range(4)]
        between = jnp.sin(x)
        ended = {n: started[n].done() for n in (2, 0, 3, 1)}
        return [ended[n] for n in range(4)], between

    rows = np.resize(ROWS, (8, count))
    got = world.each(f, rows)
    for n in range(4):
        got[0][n].close(np.tile(rows.sum(0) * n, (8, 1)), rtol=1e-6)
    if world.how != "pmap":
        assert under_way(world, f, rows) == (4, 4, 0)


def test_in_the_body_of_a_loop(world: World) -> None:
    def f(x):
        def body(total, n):
            first, second = psum_start(x * n, "i"), psum_start(x, "i")
            return total + second.done() + first.done(), None

        return lax.scan(body, jnp.zeros_like(WHOLE), jnp.arange(3.0))[0]

    world.each(f, ROWS).equal(np.tile(6 * WHOLE, (8, 1)))
    if world.how != "pmap":
        assert under_way(world, f, ROWS) == (2, 2, 0)


def test_a_done_comes_behind_what_the_program_puts_before_it(line: World) -> None:
    """XLA would end it at once: it needs nothing but its start."""

    def f(x):
        first, second = psum_start(x, "i"), psum_start(x + 1, "i")
        x = lax.sort(jnp.sin(x))
        ended = first.done(), second.done()
        return *ended, lax.sort(jnp.cos(x))

    lowered = line.mapped(f).lower(line.put(ROWS))
    operands = re.findall(r"@smddp_all_reduce_done\((.*?)\)", lowered.as_text())
    assert [len(each.split(", ")) for each in operands] == [4, 3], operands
    main = lowered.compile().as_text().partition("\nENTRY")[2]
    order = re.findall(r" (sort)\(|smddp_all_reduce_(start|done)", main)
    before = ["".join(each) for each in order]
    before = before[: before.index("done")]
    assert "sort" in before and before.count("start") == 2, order


def test_what_goes_on_behind_a_start_is_tied_to_it(line: World) -> None:
    """So that a compiler that orders it keeps it there: a chain, and a side of it."""

    def f(x):
        x = lax.sort(x)
        start, side = psum_start(jnp.sin(x), "i"), x * 3
        return lax.sort(jnp.cos(x)) + side, start.done()

    line.each(f, ROWS)[1].close(
        np.tile(np.sin(ROWS).sum(0), (8, 1)), rtol=1e-5, atol=1e-5
    )
    text = line.mapped(f).lower(line.put(ROWS)).as_text()
    start, barrier = re.search(
        r"(%\w+):2 = stablehlo.custom_call @smddp_all_reduce_start.*\n"
        r" *(%\w+):2 = stablehlo.optimization_barrier %\w+, \1#1",
        text,
    ).groups()
    behind = text[text.index("optimization_barrier") :]
    assert re.search(rf"cosine {barrier}#0", behind), text
    assert re.search(rf"multiply {barrier}#0", behind), text


@pytest.mark.parametrize("transform", ["grad", "jvp", "linearize", "checkpoint"])
def test_derivatives_are_those_of_psum(world: World, transform: str) -> None:
    def through(reduce):
        def f(x):
            def loss(x, scale):
                total = reduce({"x": x * scale, "y": x[:3]})
                return (total["x"] ** 2).sum() + total["y"].sum() * scale

            scale = jnp.float32(0.5)
            if transform == "grad":
                return jax.grad(loss, argnums=(0, 1))(x, scale)
            if transform == "jvp":
                return jax.jvp(loss, (x, scale), (jnp.cos(x), jnp.float32(2)))[1]
            if transform == "linearize":
                return jax.linearize(loss, x, scale)[1](jnp.cos(x), jnp.float32(2))
            return jax.grad(jax.checkpoint(loss))(x, scale)

        return f

    got = world.each(through(lambda tree: psum_start(tree, "i").done()), ROWS)
    want = world.each(through(lambda tree: smddp_jax.psum(tree, "i")), ROWS)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), got.tree, want.tree)


def test_vmap(world: World) -> None:
    whole = WHOLE.reshape(3, 4)

    def over_rows(axes):
        vmapped = jax.vmap(lambda row: psum_start(row, axes).done(), axis_name="v")
        return lambda x: vmapped(x.reshape(3, 4))

    world.each(over_rows("i"), ROWS).equal(np.tile(whole, (8, 1, 1)))
    if world.how == "checked":
        return  # JAX's types know no axes of vmap
    local = ROWS.reshape(8, 3, 4).sum(1, keepdims=True)
    world.each(over_rows("v"), ROWS).equal(np.tile(local, (1, 3, 1)))
    world.each(over_rows(("v", "i")), ROWS).equal(np.tile(whole.sum(0), (8, 3, 1)))


def crosses_jit(x):
    started = jax.jit(lambda x: psum_start(x, "i"))(x)
    return started.done()


def ends_in_jit(x):
    started = psum_start(x, "i")
    return jax.jit(lambda started: started.done())(started)


def ends_in_loop(x):
    started = psum_start(x, "i")
    return (
        lax.fori_loop(0, 3, lambda n, total: total + started.done() * n, 0 * WHOLE) / 3
    )


def ends_in_branch(x):
    started = psum_start(x, "i")
    return lax.cond(lax.axis_index("i") > 9, lambda: 0 * WHOLE, started.done)


def is_carried(x):
    def body(started, _):
        return psum_start(x, "i"), started.done()

    last, totals = lax.scan(body, psum_start(x, "i"), None, length=3)
    return (totals.sum(0) + last.done()) / 4


def ends_twice(x):
    started = psum_start(x, "i")
    return (started.done() + start.done(started, behind=[jnp.sin(x)])) / 2


def is_looked_at(x):
    started = psum_start(x, "i")
    (early,) = jax.tree.leaves(started)
    return (started.done() + early) / 2


def calls_python(x):
    started = psum_start(x, "i")
    kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
    same = jax.pure_callback(lambda x: np.asarray(x), kind, x)
    return started.done() + 0 * lax.psum(same, "i")


@pytest.mark.parametrize(
    "f",
    [
        *(crosses_jit, ends_in_jit, ends_in_loop, ends_in_branch, is_carried),
        *(ends_twice, is_looked_at, calls_python),
    ],
    ids=lambda f: f.__name__,
)
def test_elsewhere_it_is_a_psum(f: Callable) -> None:
    """Where nothing says that XLA gets to the done, with the sum where it was."""
    unchecked = World("unchecked", jax.devices())
    unchecked.each(f, ROWS).equal(np.tile(WHOLE, (8, 1)))
    starts, dones, whole = under_way(unchecked, f, ROWS)
    assert (starts, dones) == (0, 0) and whole >= 1


def test_what_is_not_ended_is_not_under_way(world: World) -> None:
    def f(x):
        psum_start(x, "i")
        psum_start(x, "i").done()
        return x

    world.each(f, ROWS).equal(ROWS)
    if world.how != "pmap":
        starts, dones, _ = under_way(world, f, ROWS)
        assert starts == dones <= 1


def test_nothing_to_send(world: World) -> None:
    def f(x):
        return psum_start((x[:0], x[1:1]), "i").done(), psum_start({}, "i").done()

    assert world.each(f, ROWS)[0][0].tree.size == 0
    if world.how != "pmap":
        assert under_way(world, f, ROWS)[:2] == (0, 0)


def test_arguments_stay_as_they_are(line: World) -> None:
    """An argument that is given away, constants, and one sum started twice."""

    def f(x):
        x = x[0]
        constant = lax.pcast(jnp.arange(3.0), "i", to="varying")
        started = [psum_start(each, "i") for each in (x, x, constant)]
        changed = x * 2 + 1
        return [each.done() for each in started], changed[None]

    specs = {"in_specs": P("i"), "out_specs": (P(), P("i"))}
    mapped = jax.jit(line.shard_map(f, **specs), donate_argnums=0)
    assert mapped.lower(ROWS).as_text().count("smddp_all_reduce_done") == 3
    (one, other, constant), changed = mapped(line.put(ROWS))
    np.testing.assert_array_equal(one, WHOLE)
    np.testing.assert_array_equal(other, WHOLE)
    np.testing.assert_array_equal(constant, 8 * np.arange(3))
    np.testing.assert_array_equal(changed, ROWS * 2 + 1)


def test_without_jit(line: World) -> None:
    f = line.shard_map(lambda x: psum_start(x[0], "i").done(), out_specs=P())
    np.testing.assert_array_equal(f(ROWS), WHOLE)


def test_a_step_of_its_own_may_end_it(line: World) -> None:
    begin = jax.jit(line.shard_map(lambda x: psum_start(x[0], "i"), out_specs=P()))
    np.testing.assert_array_equal(begin(ROWS).done(), WHOLE)


def test_an_export_starts_and_ends(line: World) -> None:
    f = jax.jit(line.shard_map(lambda x: psum_start(x[0], "i").done(), out_specs=P()))
    exported = export.deserialize(export.export(f)(line.put(ROWS)).serialize())
    assert "smddp_all_reduce_start" in exported.mlir_module()
    np.testing.assert_array_equal(exported.call(line.put(ROWS)), WHOLE)

    @jax.jit
    def among_callbacks(x):
        jax.debug.callback(lambda x: None, x[0, 0])
        return exported.call(x)

    lowered = among_callbacks.lower(line.put(ROWS))
    assert "smddp_all_reduce(" in lowered.as_text()
    assert "smddp_all_reduce_" not in lowered.as_text()
    np.testing.assert_array_equal(lowered.compile()(line.put(ROWS)), WHOLE)


def test_results_in_place_of_arguments_are_for_psum_alone(line: World) -> None:
    collectives = smddp_jax.collectives
    collectives.alias_results(True)
    try:
        line.each(lambda x: psum_start(x, "i").done(), ROWS).equal(
            np.tile(WHOLE, (8, 1))
        )
    finally:
        collectives.alias_results(False)


def test_a_moved_sum_is_an_error(line: World, monkeypatch) -> None:
    """Never a wrong sum, were XLA to copy what is still being written."""
    number_calls = lowering.number_calls

    def move(module):
        number_calls(module)
        from jax.interpreters.mlir import ir
        from jaxlib.mlir.dialects import stablehlo

        from smddp_jax.collectives.pairs import _walk, target_of

        with module.context, ir.Location.unknown(module.context):
            for op in list(_walk(module.operation)):
                if target_of(op) == start.DONE:
                    with ir.InsertionPoint(op):
                        op.operands[0] = stablehlo.reverse(op.operands[0], [0])

    def f(x):
        moved = psum_start(x, "i")
        other = psum_start(x * 2, "i")
        return moved.done(), other.done()

    monkeypatch.setattr(lowering, "number_calls", move)
    with pytest.raises(
        (jax.errors.JaxRuntimeError, ValueError), match="moved"
    ) as error:
        line.each(f, ROWS)
    assert "psum_start('i') in jit_" in str(error.value)
    assert "use smddp_jax.psum there" in str(error.value)
    monkeypatch.undo()
    line.each(lambda x: psum_start(x + 1, "i").done(), ROWS).equal(
        np.tile(WHOLE + 8, (8, 1))
    )


def test_explain_tells_of_starts(line: World) -> None:
    def f(x):
        return psum_start((x[0], x[0] * 2), "i", wire_dtype="bf16").done()

    explained = smddp_jax.explain(line.shard_map(f, out_specs=P()), ROWS)
    (row,) = explained.rows
    assert (row.op, row.runs) == ("psum_start of 2 arrays", "ours")
    assert row.why == "within a process, sent as bfloat16 between hosts"
    assert not explained.notes


def test_explain_tells_why_nothing_overlaps(line: World) -> None:
    mapped = line.shard_map(lambda x: calls_python(x[0]), out_specs=P())
    (note,) = smddp_jax.explain(mapped, ROWS).notes
    assert re.search(r"psum_start .*python_cpu_callback", note), note


def test_a_wire_that_does_not_fit_is_refused(line: World) -> None:
    with pytest.raises(ValueError, match="float16"):
        line.each(
            lambda x: psum_start(x.astype(jnp.int32), "i", wire_dtype="f16").done(),
            ROWS,
        )


def test_xla_sums_where_the_engine_is_missing() -> None:
    program = (
        "import sys; sys.modules['smddp_jax._core'] = None; import jax, smddp_jax; "
        "f = lambda x: smddp_jax.psum_start(x, 'i').done(); "
        "print(jax.pmap(f, 'i')(jax.numpy.ones(8))[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(8, {"SMDDP_FALLBACK": "1"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "8.0\n", done.stderr


@pytest.mark.parametrize("devices", [1, 2])
def test_few_devices(devices: int) -> None:
    assert "DONE" in run_alone("starts", "sums", devices=devices)


@pytest.mark.any_jax
@pytest.mark.parametrize(
    ("processes", "hosts", "devices"), [(2, 1, 1), (4, 1, 1), (2, 2, 1), (4, 2, 2)]
)
def test_between_processes(tmp_path, processes, hosts, devices) -> None:
    with run_ranks(
        *("starts", "sums"),
        processes=processes,
        hosts=hosts,
        devices=devices,
        logs=tmp_path,
    ) as job:
        job.succeed(150)


@pytest.mark.parametrize("hosts", [1, 2])
def test_all_are_under_way_before_the_peer_comes(tmp_path, hosts) -> None:
    """XLA runs so small a program in order: a psum would keep it from the next."""
    reached = tmp_path / "reached"
    options = {"hosts": hosts, "logs": tmp_path, "env": {"SMDDP_TIMEOUT": "60"}}
    with run_ranks("starts", "waits", reached, **options) as job:
        outputs = job.succeed(90)
    assert "all under way" in outputs[0]


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_peer_dies_between_start_and_done(tmp_path, hosts) -> None:
    options = {"hosts": hosts, "logs": tmp_path, "env": {"SMDDP_TIMEOUT": "120"}}
    with run_ranks("starts", "dies", **options) as job:
        job.until_said("ready", 60)
        time.sleep(0.5)  # The other one is in its dones now.
        killed = time.monotonic()
        job[1].send(signal.SIGKILL)
        (message,) = all_raise(job, [job[0]], killed, within=5)
        assert "rank 1" in message and "psum_start" in message, message
        nothing_lingers(job)
