"""The decoder, its parameters on a mesh, what it costs.

Doors, for other rooms:
  config: the facts of a model
  loaded: a model ready to score, and its tokenizer
  attention: one entry point, plain attention as its oracle, a choice
  attention_spec: what a query sees, for all backends
  rope: rotary embeddings: a table of frequencies per type
  int8: kernels in 8 bits, for models that only score
  defaults: what a machine does best, where a config leaves it open
  log_probs: log-probs of targets, without logits of all positions
  remat: what training keeps of a block, by name
  parameters: names and shapes of the parameters
  partition: where each parameter lives
  sharding: meshes, and sharding rules as data
  row_parts: rows that the axis "context" of a mesh splits
  flops: floating-point operations of a pass
  memory: bytes of a device, by shapes alone

Inside:
  transformer, layers, moe: the network
  backends: attention, one module for each kind of machine
"""

__all__ = [
  "config",
  "loaded",
  "attention",
  "attention_spec",
  "rope",
  "int8",
  "defaults",
  "log_probs",
  "remat",
  "parameters",
  "partition",
  "sharding",
  "row_parts",
  "flops",
  "memory",
]
