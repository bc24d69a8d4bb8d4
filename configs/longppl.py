"""LongPPL with the paper's windows: the default of the scripts.

Purpose: compare models, or score a corpus, at K = 4096 and d = 1024.
Command: python scripts/eval.py --evaluator E --model A --model B --data D
Variants: "k1024" (K = d = 1024: documents from 2,049 tokens, cheapest).
Hardware: any; an evaluator of 8B parameters takes one accelerator of 24 GB, of
  16 with --weights int8.
"""

from ml_collections import ConfigDict


def get_config(variant: str = "") -> ConfigDict:
  """Returns the config; see the module docstring for the variants."""
  config = ConfigDict()
  config.data = ConfigDict(
    dict(
      sources=(),  # files, folders, globs, URLs
      text_column="text",
      ids_column="",  # token ids in place of the text; "" is off
      ids_tokenizer="",  # whose ids they are; "" is the evaluator's
      id_column="",  # "" takes "id" or "doc_id" where there is one
      columns=(),  # pass through into the store
      row_range=(0, 0),  # rows [a, b); (0, 0) is all
      max_length=0,  # ids; 0 is the model's own limit
      over_length="truncate_end",  # or "skip", "error"
      chunk_len=0,  # seq_len of the training that reads the store; 0: uncut
      chunk_tokenizer="",  # of the model in training; "" is the evaluator's
    )
  )
  config.evaluator = ""  # finds key tokens: folder, hub id or .gguf
  config.models = ()  # under test
  config.key_tokens = ""  # scored workdir or "slices:FOLDER"; "" scores first
  config.longppl = ConfigDict(
    dict(
      short_len=4096,  # ids (K)
      stride=1024,  # ids (d)
      alpha=2.0,  # nats
      beta=-2.0,  # nats
      protocol="paper",  # or "strict"
    )
  )
  # Devices; 0 and 0: copies of the weights on CPU, else shards of them.
  # "context" splits rows that are too long for one.
  config.mesh = ConfigDict(dict(data=0, fsdp=0, tensor=1, context=1))
  config.scoring = ConfigDict(
    dict(
      dtype="",  # "" is float32 on CPU, bfloat16 elsewhere
      weights="",  # "int8" rounds kernels: 8B on 16 GiB; "" is the dtype
      window_batch=0,  # windows per device; 0 is 1 on CPU, 4 elsewhere
      chunk=1024,  # positions whose logits are held at a time
      backend="auto",  # attention
      detail="tokens",  # stored per document; or "keys", "scores"
      flush_seconds=30.0,  # between parts of the store
    )
  )
  config.eval = ConfigDict(
    dict(
      log_probs=True,  # keep them: a row a document, 8 bytes a target at most
      per_token=False,  # and rows per target
      sums_only=False,  # no log-prob of a target leaves the devices
    )
  )
  match variant:
    case "":
      pass
    case "k1024":
      config.longppl.short_len = config.longppl.stride = 1024
    case _:
      raise ValueError(f"variant {variant!r} is not one of '', 'k1024'")
  return config
