"""Run untrusted code in sealed sandboxes on machines you own.

    from bellglass import Sandbox

    with Sandbox.create("interpreter") as sandbox:
        print(sandbox.run_code("6 * 7").text)

Every class that sends requests exists in two variants: a blocking one for threads, such as `Sandbox`, and an asynchronous
one for event loops, such as `AsyncSandbox`.
"""

from .artifacts import Artifact, AsyncArtifacts, AsyncDatasets
from .client import AsyncClient
from .code import AsyncContexts, CodeError, Context, Execution, Result, Variable
from .commands import AsyncCommands, AsyncExec, ExecInfo, Line
from .errors import (
    BellglassError,
    Conflict,
    ConnectionFailed,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProtocolBroken,
    QuotaExceeded,
    RateLimited,
    SandboxLost,
    SpawnFailed,
    Unauthorized,
)
from .files import AsyncFiles, FileEvent, FileInfo
from .local_server import LocalServer, NoServer, local
from .outcome import CommandResult, End, Outcome
from .patience import Patience
from .python_set import cleanup_sandbox, execute_python
from .reader import Chunk
from .sandbox import AsyncSandbox, Limits, Port, SandboxInfo, Usage, Wanted
from .session import AsyncSession, SessionInfo, WantedSession
from .sync import (
    Artifacts,
    Client,
    Commands,
    Contexts,
    Datasets,
    Exec,
    Files,
    Sandbox,
    Session,
    Terminal,
    Terminals,
)
from .terminal import AsyncTerminal, AsyncTerminals

__version__ = "0.1.0"
__all__ = [
    "Artifact",
    "Artifacts",
    "AsyncArtifacts",
    "AsyncClient",
    "AsyncCommands",
    "AsyncContexts",
    "AsyncDatasets",
    "AsyncExec",
    "AsyncFiles",
    "AsyncSandbox",
    "AsyncSession",
    "AsyncTerminal",
    "AsyncTerminals",
    "BellglassError",
    "Chunk",
    "Client",
    "CodeError",
    "CommandResult",
    "Commands",
    "Conflict",
    "ConnectionFailed",
    "Context",
    "Contexts",
    "Datasets",
    "DeadlineExceeded",
    "End",
    "Exec",
    "ExecInfo",
    "Execution",
    "FileEvent",
    "FileInfo",
    "Files",
    "Forbidden",
    "InvalidRequest",
    "Limits",
    "Line",
    "LocalServer",
    "NoCapacity",
    "NoServer",
    "NotFound",
    "Outcome",
    "Patience",
    "Port",
    "ProtocolBroken",
    "QuotaExceeded",
    "RateLimited",
    "Result",
    "Sandbox",
    "SandboxInfo",
    "SandboxLost",
    "Session",
    "SessionInfo",
    "SpawnFailed",
    "Terminal",
    "Terminals",
    "Unauthorized",
    "Usage",
    "Variable",
    "Wanted",
    "WantedSession",
    "cleanup_sandbox",
    "execute_python",
    "local",
]
