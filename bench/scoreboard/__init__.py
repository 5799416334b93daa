"""An entry for the scoreboard of ONNX backends (onnx/backend-scoreboard); ``make scoreboard`` runs it without Docker.

`Dockerfile` belongs to ``runtimes/bolt-numba/stable`` there, `config.json` into ``setup/config.json``, and `job.yml`
into the workflow that runs the backends, whose last job needs its name and fetches its results.
"""
