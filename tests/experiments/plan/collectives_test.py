"""Collectives are counted as often as they run."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from longctx_jax.experiments.plan import collectives
from longctx_jax.experiments.plan.collectives import Traffic
from longctx_jax.model import sharding

# As the TPU compiler writes a loop over the shards of a product: the counter
# goes up by two, and what is sent lies beside what is received.
LOOP = """\
HloModule jit_step, is_scheduled=true

%condition (p: (bf16[8,16], u32[])) -> pred[] {
  %limit = u32[]{:T(128)} constant(6)
  %p = (bf16[8,16]{1,0:T(8,128)(2,1)}, u32[]{:T(128)}) parameter(0)
  %counter = u32[]{:T(128)} get-tuple-element(%p), index=1
  ROOT %less = pred[]{:T(512)} compare(%counter, %limit), direction=LT
}

%body (q: (bf16[8,16], u32[])) -> (bf16[8,16], u32[]) {
  %two = u32[]{:T(128)} constant(2)
  %q = (bf16[8,16]{1,0:T(8,128)(2,1)}, u32[]{:T(128)}) parameter(0)
  %part = bf16[8,16]{1,0:T(8,128)(2,1)} get-tuple-element(%q), index=0
  %at = u32[]{:T(128)} get-tuple-element(%q), index=1
  %send = (bf16[8,16]{1,0:T(8,128)(2,1)}, bf16[8,16]{1,0:T(8,128)(2,1)}, \
u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%part), channel_id=9
  %got = bf16[8,16]{1,0:T(8,128)(2,1)} collective-permute-done(%send)
  %next = u32[]{:T(128)} add(%at, %two)
  ROOT %out = (bf16[8,16]{1,0}, u32[]{:T(128)}) tuple(%got, /*index=1*/%next)
}

ENTRY %main (x: bf16[8,16]) -> bf16[8,16] {
  %x = bf16[8,16]{1,0} parameter(0)
  %zero = u32[] constant(0)
  %start = (bf16[8,16]{1,0}, u32[]) tuple(%x, %zero)
  %while = (bf16[8,16]{1,0}, u32[]) while(%start), condition=%condition, \
body=%body, metadata={op_name="while"}
  %sums = (f32[], f32[4]{0}) all-reduce(%a, %b), to_apply=%add
  ROOT %done = bf16[8,16]{1,0} get-tuple-element(%while), index=0
}
"""


def test_a_loop_counts_as_often_as_it_turns():
  assert collectives.count(LOOP) == {
    "all-reduce": Traffic(1, 4 + 16),
    "collective-permute": Traffic(3, 3 * 8 * 16 * 2),
  }


def test_a_loop_that_does_not_say_how_often_counts_once():
  vague = LOOP.replace("direction=LT", "direction=NE")
  assert collectives.count(vague)["collective-permute"].count == 1


@pytest.mark.parametrize("turns", [1, 5])
def test_what_a_scanned_program_sends_is_read_from_its_text(turns):
  """Each turn gathers one matrix of a stack that lies on eight devices."""
  mesh = sharding.make_mesh({"fsdp": 8})
  stack = jax.ShapeDtypeStruct(
    (turns, 64, 32), jnp.float32, sharding=NamedSharding(mesh, P(None, "fsdp"))
  )
  x = jax.ShapeDtypeStruct(
    (8, 64), jnp.float32, sharding=NamedSharding(mesh, P("fsdp"))
  )

  def run(x, stack):
    def turn(x, matrix):
      whole = sharding.constrain(matrix, None, None)
      return jnp.tanh(x @ whole) @ whole.T, None

    return jax.lax.scan(turn, x, stack)[0]

  with jax.set_mesh(mesh):
    compiled = jax.jit(run).lower(x, stack).compile()
  found = collectives.count(compiled.as_text())
  assert found == {"all-gather": Traffic(turns, turns * 64 * 32 * 4)}
