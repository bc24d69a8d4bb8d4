"""Texts on stdin, as JSON, to the ids of llama.cpp on stdout.

In a process of its own: the tests have no network, not even to themselves.
"""

import json
import sys
import urllib.request

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 64
params.warmup = False
params.port = 0
server = xllamacpp.Server(params)
found = []
for text, add_special in json.load(sys.stdin):
  body = {"content": text, "add_special": add_special, "parse_special": True}
  request = urllib.request.Request(
    f"{server.listening_address}/tokenize",
    json.dumps(body).encode(),
    {"Content-Type": "application/json"},
  )
  with urllib.request.urlopen(request) as answer:
    found.append(json.load(answer)["tokens"])
print(json.dumps(found))
