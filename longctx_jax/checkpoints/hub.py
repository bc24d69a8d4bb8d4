"""Names of models to paths on this machine, through the hub where needed."""

from __future__ import annotations

import pathlib
import threading
from typing import TYPE_CHECKING

from longctx_jax.text import tokenizer_files

if TYPE_CHECKING:
  from huggingface_hub import errors

_FILES = ("*.json", *tokenizer_files.PATTERNS)
_WEIGHTS = ("*.safetensors",)
# The same weights once more, in other layouts: subfolders, Meta's, Mistral's.
_LEFT_OUT = ("*/*", "consolidated*")
# Until the hub counts as not there: an offline machine must not wait.
_ASK_SECONDS = 3.0
_ACCESS = (
  "accept its licence on its hub page and log in (`hf auth login`), give the "
  "path of a folder you have, or evaluate from published key tokens (--keys "
  "slices:FOLDER)"
)


def resolve(name: str, *, weights: bool = True) -> tuple[pathlib.Path, str]:
  """Path on this machine and, for a hub id, the commit.

  A hub id comes from the hub's cache, which is brought up to date first where
  the hub answers.

  Args:
    name: a path or a hub id, which "@" and a branch, tag or commit may follow.
    weights: whether they are needed: a tokenizer does without.

  Raises:
    FileNotFoundError: where neither a path nor the hub has it, within 5
      seconds where the hub does not answer; the message says what to do.
  """
  path = pathlib.Path(name).expanduser()
  if path.exists():
    return path, ""
  hub_id, _, revision = name.partition("@")
  looks_local = name.startswith((".", "/", "~")) or hub_id.count("/") != 1
  if looks_local or path.suffix == ".gguf":
    raise FileNotFoundError(
      f"{name}: no such file or folder, and not a hub id (owner/name, or "
      "owner/name@revision)"
    )
  import huggingface_hub
  from huggingface_hub import constants, errors

  commit, error = _ask(hub_id, revision)
  try:
    if isinstance(error, errors.RepositoryNotFoundError):
      raise error
    snapshot = huggingface_hub.snapshot_download(
      hub_id,
      revision=commit or revision or None,
      allow_patterns=_FILES + (_WEIGHTS if weights else ()),
      ignore_patterns=_LEFT_OUT,
      local_files_only=not commit,
    )
  except errors.HfHubHTTPError as refusal:
    raise FileNotFoundError(_explain(name, refusal)) from refusal
  except (errors.LocalEntryNotFoundError, OSError) as e:
    raise FileNotFoundError(
      f"{name} is neither a folder here nor in the hub cache "
      f"({constants.HF_HUB_CACHE}), and the hub does not "
      f"answer ({type(error or e).__name__}). Copy its config.json, "
      "*.safetensors and tokenizer files into a folder and give that path"
    ) from e
  snapshot = pathlib.Path(snapshot)
  return snapshot, snapshot.name


def _ask(hub_id: str, revision: str) -> tuple[str, Exception | None]:
  """(commit, None), or ("", why there is none)."""
  import huggingface_hub

  answer = []

  def ask():
    try:
      info = huggingface_hub.HfApi().model_info(
        hub_id, revision=revision or None, timeout=_ASK_SECONDS
      )
      answer.append((info.sha, None))
    except Exception as error:
      # Of whichever HTTP library this version of the hub's package uses.
      answer.append(("", error))

  # The look-up of a host's address has no time limit of its own.
  thread = threading.Thread(target=ask, daemon=True)
  thread.start()
  thread.join(_ASK_SECONDS + 1)
  return answer[0] if answer else ("", TimeoutError())


def _explain(name: str, refusal: errors.HfHubHTTPError) -> str:
  from huggingface_hub import errors

  status = refusal.response.status_code
  if isinstance(refusal, errors.GatedRepoError):
    return f"{name} is gated: {_ACCESS}"
  if status in (401, 403):
    return (
      f"the hub refuses {name} ({status}): it is gated, private, or does not "
      f"exist. If it exists, {_ACCESS}"
    )
  if status == 404:
    return f"{name}: no such model on the hub"
  return f"{name}: the hub answers with status {status}; try again later"
