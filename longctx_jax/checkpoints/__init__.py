"""Weights in and out: Hugging Face, GGUF, Orbax, hub ids.

Doors, for other rooms:
  loading: from a path or hub id to a model on a mesh
  hub: names of models to paths on this machine
  export: parameters back to a Hugging Face folder
  convert: between formats, and whether the logits are the same
  weights: parameters from any source of tensors, checked on the way
  step_folder: a checkpoint in the middle of a training run
  tensor_map: which tensors a parameter comes from
  facts.config_json: config.json to `ModelConfig` and back
  gguf.tensors: the tensors and facts of a GGUF file
  gguf.tokenizer: the tokenizer of a GGUF file

Inside:
  tensor_source: what each source of tensors has
  hf_folder, orbax_folder: tensors of a folder
  placement: pieces of tensors straight into their places on the mesh
  weight_faults: weights that load and cannot be right
  folder_files: config.json and tokenizer, beside the weights
"""

__all__ = [
  "loading",
  "hub",
  "export",
  "convert",
  "weights",
  "step_folder",
  "tensor_map",
  "facts.config_json",
  "gguf.tensors",
  "gguf.tokenizer",
]
