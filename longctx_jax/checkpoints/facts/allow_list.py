"""Which fields of a config.json may stand there unread."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

# Cannot change a forward pass without dropout.
HARMLESS = {
  "architectures",
  "attention_dropout",
  "attn_implementation",
  "auto_map",
  "bos_token_id",
  "chunk_size_feed_forward",
  "dtype",
  "eos_token_id",
  "finetuning_task",
  "id2label",
  "initializer_range",
  "is_decoder",
  "is_llama_config",
  "keys_to_ignore_at_inference",
  "label2id",
  "max_length",
  "max_sequence_length",
  "model_max_length",
  "output_attentions",
  "output_hidden_states",
  "pad_token_id",
  "pretraining_tp",
  "return_dict",
  "tokenizer_class",
  "torch_dtype",
  "transformers.js_config",
  "transformers_version",
  "unk_token_id",
  "unsloth_fixed",
  "unsloth_version",
  "use_cache",
}


def refuse_unknown(
  fields: Mapping[str, Any],
  known: Collection[str],
  neutral: Mapping[str, Any],
) -> None:
  """Raises for fields that could change the numbers; one of "nothing" cannot.

  Args:
    fields: of a config.json.
    known: fields that are read, or harmless.
    neutral: field -> the one value that changes nothing.

  Raises:
    ValueError: naming the fields that are not understood, and their values.
  """
  unknown = sorted(
    name
    for name, value in fields.items()
    if name not in known
    and not name.startswith("_")
    and value not in (None, False, "", [], {})
    and not (name in neutral and value == neutral[name])
  )
  if unknown:
    raise ValueError(
      "fields that are not understood and could change the numbers: "
      f"{', '.join(f'{name}={fields[name]!r}' for name in unknown)}"
    )
