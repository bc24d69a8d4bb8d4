"""Names of models to paths on this machine, through the hub where needed."""

from __future__ import annotations

import pathlib
import threading
from typing import TYPE_CHECKING, Any

from longctx_jax.text import tokenizer_files

if TYPE_CHECKING:
  from huggingface_hub import errors

_FILES = ("*.json", *tokenizer_files.PATTERNS)
_WEIGHTS = ("*.safetensors",)
# The same weights once more, in other layouts: subfolders, Meta's, Mistral's.
_LEFT_OUT = ("*/*", "consolidated*")
# Until the hub counts as not there: an offline machine must not wait.
_ASK_SECONDS = 3.0
_SCHEME = "hf://"
_REFUSALS = (401, 403)
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
    name: a path or a hub id, which "@" and a branch, tag or commit may follow;
      hf://OWNER/NAME is one too.
    weights: whether they are needed: a tokenizer does without.

  Raises:
    FileNotFoundError: where neither a path nor the hub has it, within 5
      seconds where the hub does not answer; the message says what to do.
  """
  name = name.removeprefix(_SCHEME)
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

  info, error = _ask(hub_id, revision)
  commit = info.sha if info else ""
  try:
    if _is_refusal(error):
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


def missing_bytes(name: str) -> int:
  """Bytes of weights that `resolve` would download; 0 where the hub is mute.

  Args:
    name: as `resolve` takes it.
  """
  import huggingface_hub
  from huggingface_hub import utils

  name = name.removeprefix(_SCHEME)
  if pathlib.Path(name).expanduser().exists():
    return 0
  hub_id, _, revision = name.partition("@")
  info, _ = _ask(hub_id, revision, files_metadata=True)
  sizes = _sizes(info)
  wanted = utils.filter_repo_objects(
    sizes, allow_patterns=_WEIGHTS, ignore_patterns=_LEFT_OUT
  )
  return sum(
    sizes[file]
    for file in wanted
    if not isinstance(
      huggingface_hub.try_to_load_from_cache(hub_id, file, revision=info.sha),
      str,
    )
  )


def list_data(hub_id: str) -> tuple[str, dict[str, int]]:
  """Commit of a data set, and its files with their sizes in bytes.

  Raises:
    FileNotFoundError: the hub refuses it, or does not answer.
  """
  info, error = _ask(hub_id, "", kind="dataset", files_metadata=True)
  if _is_refusal(error):
    raise FileNotFoundError(_explain(hub_id, error)) from error
  if error:
    raise FileNotFoundError(
      f"{hub_id} can't be had: the hub does not answer "
      f"({type(error).__name__}). Check the connection (HF_ENDPOINT names "
      "another hub), and give the command again"
    ) from error
  return info.sha, _sizes(info)


def download(
  hub_id: str, file: str, *, revision: str, folder: pathlib.Path
) -> pathlib.Path:
  """A file of a data set, brought to `folder`; goes on where it stopped.

  Raises:
    OSError: the connection broke; the same call goes on.
  """
  import huggingface_hub
  from huggingface_hub import errors

  try:
    return pathlib.Path(
      huggingface_hub.hf_hub_download(
        hub_id, file, repo_type="dataset", revision=revision, local_dir=folder
      )
    )
  except errors.HfHubHTTPError as refusal:
    raise OSError(_explain(f"{file} of {hub_id}", refusal)) from refusal


def _sizes(info: Any) -> dict[str, int]:
  siblings = (info and info.siblings) or ()
  return {file.rfilename: file.size or 0 for file in siblings}


def _is_refusal(error: Exception | None) -> bool:
  """Whether the hub answered that it does not give what it was asked for."""
  from huggingface_hub import errors

  if isinstance(error, errors.RepositoryNotFoundError):
    return True
  return (
    isinstance(error, errors.HfHubHTTPError)
    and error.response.status_code in _REFUSALS
  )


def _ask(
  hub_id: str, revision: str, *, kind: str = "model", **options: Any
) -> tuple[Any, Exception | None]:
  """(what the hub says of a repository, None), or (None, why it does not)."""
  import huggingface_hub

  answer = []

  def ask():
    try:
      api = huggingface_hub.HfApi()
      look_up = api.dataset_info if kind == "dataset" else api.model_info
      info = look_up(
        hub_id, revision=revision or None, timeout=_ASK_SECONDS, **options
      )
      answer.append((info, None))
    except Exception as error:
      # Of whichever HTTP library this version of the hub's package uses.
      answer.append((None, error))

  # The look-up of a host's address has no time limit of its own.
  thread = threading.Thread(target=ask, daemon=True)
  thread.start()
  thread.join(_ASK_SECONDS + 1)
  return answer[0] if answer else (None, TimeoutError())


def _explain(name: str, refusal: errors.HfHubHTTPError) -> str:
  from huggingface_hub import errors

  status = refusal.response.status_code
  if isinstance(refusal, errors.GatedRepoError):
    return f"{name} is gated: {_ACCESS}"
  if status in _REFUSALS:
    return (
      f"the hub refuses {name} ({status}): it is gated, private, or does not "
      f"exist. If it exists, {_ACCESS}"
    )
  if status == 404:
    return f"{name}: no such model or data set on the hub"
  return f"{name}: the hub answers with status {status}; try again later"
