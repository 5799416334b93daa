"""A server of models: the Open Inference Protocol over REST and gRPC (``bolt-numba serve``; docs/serve.md).

It needs the packages of the extra ``serve``.
"""

from bolt_numba.serve.errors import RequestError
from bolt_numba.serve.repository import Repository
from bolt_numba.serve.server import Server
from bolt_numba.serve.settings import Doors, ModelSettings, SettingsError

__all__ = ["Doors", "ModelSettings", "Repository", "RequestError", "Server", "SettingsError"]
