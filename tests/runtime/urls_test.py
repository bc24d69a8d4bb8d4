"""Places with a scheme: read through a package, never written."""

import pytest
from support.checks import refuses

from longctx_jax.runtime import urls


@pytest.mark.parametrize("place", ["gs://b/k", "file:///a", "S3A://x"])
def test_nothing_is_written_to_a_url(place):
  with refuses(f"--workdir {place} is a URL: .* local or mounted"):
    urls.require_local(place, flag="workdir")


@pytest.mark.parametrize("place", ["", "a", "/a/b", "c:/a", "a:b", "tfds:x/y"])
def test_paths_are_local(place):
  urls.require_local(place, flag="workdir")
  assert urls.scheme(place) == ""


def test_errors_of_a_path_stay_what_they_are(tmp_path):
  with refuses("reason", KeyError), urls.reaching(tmp_path):
    raise KeyError("reason")
  with refuses("gs://b can't be read: KeyError: 'reason'. Check", OSError):
    with urls.reaching("gs://b"):
      raise KeyError("reason")
  with refuses("no file", FileNotFoundError), urls.reaching("gs://b"):
    raise FileNotFoundError("no file")
