"""The models of a server: where they lie, which versions serve, and how one takes the place of another.

A folder holds ``NAME/VERSION/model.onnx``, and ``NAME/model.toml`` with settings, or files ``NAME.onnx``; or models are
files by their stems.
A version takes requests once it is warm.  One that cannot be loaded leaves what serves as it is.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from bolt_numba.base.border import as_bolt_error
from bolt_numba.base.errors import BoltError
from bolt_numba.serve.errors import RequestError, shown, spelled
from bolt_numba.serve.models import FLOWS, ServedModel, StoredVersion, is_flow, session_of
from bolt_numba.serve.settings import ALL, FILE, LATEST, ModelSettings, SettingsError, settings_of
from bolt_numba.sessions.session import Session
from bolt_numba.text.layout import MODELS, TOKENIZER
from bolt_numba.text.opened import GENAI, file_of

if TYPE_CHECKING:
    from bolt_numba.serve.processes import Link

log = logging.getLogger("bolt_numba.serve")

SUFFIXES = (".bolt", ".gguf", ".onnx", ".tflite", ".pdmodel", ".json", ".prototxt", ".caffemodel", "")
"""Of files named ``model``, the one that is read first."""
ALONE = (".bolt", ".gguf", ".onnx", ".tflite")
"""Of files that are models by themselves, in a folder of models."""
LATER = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
"""What files end with that the first one of a model opens."""
WEIGHTS = {".prototxt": ".caffemodel"}
READY, LOADING, UNAVAILABLE = "READY", "LOADING", "UNAVAILABLE"
MOST_NAMES = 10
MOST_LETTERS = 1 << 11
"""Of a model's name: no file has a longer one, and a pipe between processes has room for it."""
CHANGED = "its files changed as processes loaded it"
FIRST = "1"
"""The version of a model that is named by its file."""


def _stamp(paths: Iterable[Path]) -> tuple[Any, ...]:
    """Names, sizes and times of files, but for those that Python writes when it loads a flow's modules."""
    found = sorted(p for path in paths for p in ([path, *path.rglob("*")] if path.is_dir() else [path]) if p.is_file())
    own = [p for p in found if p.parent.name != "__pycache__"]
    return tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in own)


def _source_in(folder: Path, settings: ModelSettings, own: Path) -> StoredVersion:
    """The model of a version's folder.  Raises SettingsError where there is none, or settings nobody would read."""
    if (folder / FILE).exists():
        raise SettingsError(f"{folder / FILE}: got it beside a version's files, wanted {own}")
    own_names = [f"model{suffix}" for suffix in SUFFIXES]
    names = [*(f"flow{suffix}" for suffix in FLOWS), *(n for n in MODELS if n not in own_names), *own_names]
    path = next((folder / name for name in names if (folder / name).exists()), None)
    if (folder / GENAI).is_file():  # says which
        path = file_of(folder)
    if path is None:
        wanted = f"wanted one of {', '.join(names[:-1])}, or a folder 'model'"
        raise SettingsError(f"{folder}: got {names_in(folder)}, {wanted}")
    beside = path.with_suffix(WEIGHTS.get(path.suffix, path.suffix))
    weights = beside if beside != path and beside.exists() else None
    weights = weights if settings.weights is None else folder / settings.weights
    return StoredVersion(path, weights, settings, _stamp([folder, own]))


def names_in(folder: Path) -> str:
    """What lies in a folder, as an error tells it."""
    return ", ".join(sorted(p.name for p in folder.iterdir())[:MOST_NAMES]) or "nothing"


def model_of(path: Path) -> Path | None:
    """The model that a folder is: beside its tokenizer, or a file named ``model`` that is the only one.  None: no such.

    Raises InvalidModelError for a tokenizer without a model.
    """
    if (path / TOKENIZER).is_file():  # a folder of Hugging Face
        return file_of(path)
    found = _served_in(path)
    return found["model"] if [*found] == ["model"] and found["model"].is_file() else None


def is_repository(path: Path) -> bool:
    """Whether a folder has models in it, as files or in folders of their versions, and is not one itself."""
    return path.is_dir() and bool(_served_in(path)) and model_of(path) is None


def _served_in(folder: Path) -> dict[str, Path]:
    return {name: p for name, p in _models_in(folder).items() if p.is_file() or _versions_in(p)}


def _models_in(folder: Path) -> dict[str, Path]:
    """Files that are models, and folders, by names; of one name a folder wins, then the order of `ALONE`."""
    there = [p for p in folder.glob("*") if not p.name.startswith((".", "_")) and not LATER.search(p.name)]
    files = {p.stem: p for suffix in reversed(ALONE) for p in there if p.suffix == suffix and p.is_file()}
    return files | {p.name: p for p in there if p.is_dir()}


def _versions_in(folder: Path) -> list[Path]:
    return sorted((p for p in folder.iterdir() if p.is_dir() and p.name.isdecimal()), key=lambda p: int(p.name))


def _beside(
    old: dict[str, ServedModel], made: dict[str, ServedModel], wanted: Mapping[str, Any]
) -> dict[str, ServedModel]:
    """Versions that were made, beside those that served where some of the wanted are missing."""
    return made if len(made) == len(wanted) else dict(sorted({**old, **made}.items(), key=lambda row: int(row[0])))


class Repository:
    """Models by name and version.  For the thread of the event loop.

    folder: of models; None: there is none.  files: models by name.  usual: settings where a model has none of its own.
    ``link``: to other processes that serve the same, which make a change together; None: there are none.
    ``agreed``: versions by models that others served when this process began.
    """

    def __init__(self, folder: Path | None, files: Mapping[str, Path], usual: ModelSettings) -> None:
        self.folder, self.files, self.usual = folder, dict(files), usual
        self.models: dict[str, dict[str, ServedModel]] = {}
        self.states: dict[tuple[str, str], tuple[str, str]] = {}
        self.refused: dict[tuple[str, str], StoredVersion] = {}
        self.locks = WeakValueDictionary[str, asyncio.Lock]()  # those that are held
        self.preloaded: dict[tuple[str, str], tuple[StoredVersion, Session]] = {}
        self.unloaded: set[str] = set()
        self.retiring: set[asyncio.Task[None]] = set()
        self.has_begun = self.is_ending = False
        self.link: Link | None = None
        self.agreed: dict[str, set[str]] = {}

    # --- what there is -----------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Models that lie in the folder, or were named."""
        return sorted(self._paths())

    def _paths(self) -> dict[str, Path]:
        found = (_models_in(self.folder) if self.folder is not None else {}) | self.files
        return {spelled(name): path for name, path in found.items()}

    def _sources(self, name: str) -> dict[str, StoredVersion]:
        """Versions of a model that shall serve."""
        folder = self._paths().get(name)
        if folder is None:
            raise RequestError(f"model: got {shown(name)}, wanted one of {self.names()}", "missing")
        if folder in self.files.values() or folder.is_file():
            return {FIRST: StoredVersion(folder, None, self.usual, _stamp([folder]))}
        settings, there = settings_of(folder, self.usual), _versions_in(folder)
        if settings.versions == LATEST:
            chosen = there[-1:]
        else:
            chosen = [p for p in there if settings.versions == ALL or int(p.name) in settings.versions]
        if not chosen:
            wanted = repr(settings.versions) if there else "folders named by numbers, with a model in each"
            raise SettingsError(f"{folder}: versions: got {names_in(folder)}, wanted {wanted}")
        kept, found = self.agreed.get(name, ()), {p.name: _source_in(p, settings, folder / FILE) for p in chosen}
        if all(self.refused.get((name, version)) == source for version, source in found.items()):
            found |= {p.name: _source_in(p, settings, folder / FILE) for p in there if p.name in kept}
        return found

    def find(self, name: str, version: str = "") -> ServedModel:
        """The version that serves; "": the latest.  Raises RequestError where there is none."""
        versions = self.models.get(name)
        if versions is None:
            if known := self.rows(name):
                said = known[-1]["reason"] or known[-1]["state"].lower()
                raise RequestError(f"model {name!r}: {said}", "unavailable")
            kind = "missing" if self.has_begun else "unavailable"
            raise RequestError(f"model: got {shown(name)}, wanted one of {sorted(self.models)}", kind)
        if version not in ("", *versions):
            raise RequestError(f"model {name!r}: version: got {version!r:.20}, wanted one of {[*versions]}", "missing")
        return versions[version] if version else next(reversed(versions.values()))

    def serves(self, name: str, version: str) -> bool:
        """Whether a version takes requests; "": the latest."""
        return name in self.models and version in ("", *self.models[name])

    def versions(self, name: str = "", version: str = "") -> list[ServedModel]:
        """All that serve; those of one model, or one of them."""
        if name:
            found = self.find(name, version)
            return [found] if version else list(self.models[name].values())
        return [model for versions in self.models.values() for model in versions.values()]

    @property
    def is_ready(self) -> bool:
        """Whether every model that is asked for serves, if by an older version, and the server is not ending."""
        return self.has_begun and not self.is_ending and all(name in self.models for name, _ in self.states)

    def rows(self, name: str | None = None) -> list[dict[str, str]]:
        """Versions that are asked for, or those of one model, with their states."""
        return [
            {"name": model, "version": version, "state": state, "reason": reason}
            for (model, version), (state, reason) in sorted(self.states.items()) if name in (None, model)
        ]  # fmt: skip

    def index(self, only_ready: bool = False) -> list[dict[str, str]]:
        """The repository as the protocol tells it."""
        rows = self.rows()
        known = {row["name"] for row in rows}
        left = [name for name in self.names() if name not in known]
        rows += [{"name": name, "version": "", "state": UNAVAILABLE, "reason": "unloaded"} for name in left]
        return [row for row in rows if row["state"] == READY or not only_ready]

    # --- changes -----------------------------------------------------------------------------------------------------

    async def look(self, anew: bool = True) -> None:
        """Load what is new or changed, unload what is gone.  What cannot be loaded is told in `index` and the log."""
        if self.folder is not None and not self.folder.is_dir():  # it may be away while others put a new one there
            log.error("%s: got no folder, wanted that of the models: what serves goes on", spelled(str(self.folder)))
            return
        names = await asyncio.to_thread(self.names)
        gone = {n for n, _ in self.states} - set(names)
        for name, loads in [*((name, True) for name in names), *((name, False) for name in gone)]:
            if anew or self.has_begun or name not in self.models:  # others had it loaded as they began
                try:
                    await self._make(name, loads, anew and loads)
                except RequestError as error:
                    log.error("%s", spelled(str(error)))
        self.has_begun = True

    def preload(self) -> None:
        """Compile all models and make their plans, for processes that are forked; what fails is told by `look`."""
        for name in self.names():
            with suppress(BoltError, OSError):
                for version, source in self._sources(name).items():
                    if not is_flow(source.path):
                        self.preloaded[name, version] = (source, session_of(source))

    async def load(self, name: str, anew: bool = True) -> None:
        """Load a model, or what changed of it.  Raises RequestError where a version fails: those that served go on.

        anew: whether to load what was unloaded, and to try again what was refused and has not changed since.
        """
        async with self.locks.setdefault(name, asyncio.Lock()):
            if anew:
                self.forgive(name)
            elif name in self.unloaded:
                return
            try:
                sources = await asyncio.to_thread(self._sources, name)
            except (OSError, BoltError) as error:
                if isinstance(error, RequestError) and error.kind == "missing":
                    raise
                self._failed(name, "", str(error))
                raise RequestError(f"model {name!r}: {error}") from error
            old = self.models.get(name, {})
            made, told, errors = await self._tried(name, sources, old)
            if self.link is not None:
                after = {v: hash(m.stored.stamp) for v, m in _beside(old, made, sources).items()}
                agreed = await self.link.agree(told, after)
                for version in [v for v in made if made[v] is not old.get(v) and agreed.keys() & {v, ""}]:
                    said, kind = agreed.get(version) or agreed.get(""), "invalid"
                    if said is None:
                        said, kind = f"model {name!r}: version {version}: {CHANGED}", "unavailable"
                    self._failed(name, version, f"another process did not load it: {said}")
                    self._drop(name, [made.pop(version)])
                    errors.append(RequestError(said, kind))
                told = {version: said for version, said in agreed.items() if said is not None}
            self.refused |= {(name, version): source for version, source in sources.items() if version in told}
            for version, model in made.items():
                self.states[name, version] = (READY, "")
                if model is not old.get(version):
                    log.info("model %s version %s is ready: %s", name, version, spelled(str(model.stored.path)))
            if made := _beside(old, made, sources):
                self.models[name] = made
                self.agreed.pop(name, None)
            self._drop(name, [m for m in old.values() if m not in made.values()])
            self.forget(name, {*made, *sources})
            if errors:
                raise errors[0]

    async def _tried(
        self, name: str, sources: Mapping[str, StoredVersion], old: Mapping[str, ServedModel]
    ) -> tuple[dict[str, ServedModel], dict[str, str], list[RequestError]]:
        """Versions that are there or were made, why others were refused now or before, and errors of now."""
        made, told, errors = dict[str, ServedModel](), dict[str, str](), list[RequestError]()
        for version, source in sources.items():
            if version in old and old[version].stored == source:
                made[version] = old[version]
            elif self.refused.get((name, version)) == source:
                told[version] = self.states[name, version][1]
            else:
                try:
                    made[version] = await self._made(name, version, source)
                except RequestError as error:
                    told[version] = str(error)
                    errors.append(error)
        return made, told, errors

    def forgive(self, name: str) -> None:
        """Let a model be loaded that was unloaded, and versions that were refused."""
        self.unloaded.discard(name)
        self.refused = {key: source for key, source in self.refused.items() if key[0] != name}

    def refuse(self, name: str, told: Mapping[str, str]) -> None:
        """Do not try versions as they are now, for these reasons: in processes that are forked later."""
        with suppress(BoltError, OSError):
            for version, source in self._sources(name).items():
                if version in told:
                    self.refused[name, version] = source
                    self._failed(name, version, told[version])

    async def _made(self, name: str, version: str, source: StoredVersion) -> ServedModel:
        was = self.states.get((name, version))
        if was is None or was[0] != READY:
            self.states[name, version] = (LOADING, "")
        if self.link is not None:
            self.link.trying(version)
        ready, session = self.preloaded.pop((name, version), (None, None))
        try:
            return await asyncio.to_thread(ServedModel, name, version, source, session if ready == source else None)
        except Exception as error:
            said = str(error if isinstance(error, OSError) else as_bolt_error(error, f"model {name!r}"))
            self._failed(name, version, said)
            raise RequestError(f"model {name!r}: version {version}: {said}") from error

    def _failed(self, name: str, version: str, reason: str) -> None:
        """A version could not be loaded; one that serves under its number goes on."""
        reason = spelled(reason)
        serves = self.models.get(name, {})
        if version in serves:
            self.states[name, version] = (READY, f"a newer file was not loaded: {reason}")
        else:
            self.states[name, version] = (UNAVAILABLE, reason)

    def forget(self, name: str, left: Container[str] = ()) -> None:
        """Keep nothing of a model's versions but of those that are left."""
        for rows in (self.states, self.refused):
            for key in [k for k in rows if k[0] == name and k[1] not in left]:
                del rows[key]

    async def unload(self, name: str, is_asked: bool = True) -> None:
        """Take a model away; its requests that are under way are answered.

        is_asked: otherwise it comes back when it is there again.
        """
        async with self.locks.setdefault(name, asyncio.Lock()):
            self._drop(name, list(self.models.pop(name, {}).values()))
            self.forget(name)
            self.agreed.pop(name, None)
            if is_asked:
                self.unloaded.add(name)

    async def change(self, name: str, parameters: Iterable[str], *, loads: bool) -> None:
        """Load or unload a model as a request asks.  Raises RequestError."""
        if loads and (asked := list(parameters)):
            raise RequestError(f"load: parameters: got {shown(asked)}, wanted none: settings are files")
        if len(name) > MOST_LETTERS or not (loads or name in self.models or self.rows(name)):
            raise RequestError(f"model: got {shown(name)}, wanted one of {sorted(self.models)}", "missing")
        await self._make(name, loads, True)

    async def _make(self, name: str, loads: bool, is_asked: bool) -> None:
        if self.link is not None:
            await self.link.change(name, loads, is_asked)
        else:
            await (self.load if loads else self.unload)(name, is_asked)

    def _drop(self, name: str, models: Sequence[ServedModel]) -> None:
        for model in models:
            task = asyncio.get_running_loop().create_task(model.retire(), name=f"retire {name} {model.version}")
            self.retiring.add(task)
            task.add_done_callback(self.retiring.discard)

    async def end(self, seconds: float) -> None:
        """Close all models, once what is under way is answered, if that takes no longer."""
        self.is_ending = True
        for name in list(self.models):  # whatever is being loaded
            self._drop(name, list(self.models.pop(name).values()))
        if self.retiring:
            await asyncio.wait(self.retiring, timeout=seconds)

    async def watch(self, seconds: float) -> None:
        """Look every so many seconds."""
        while not self.is_ending:
            await asyncio.sleep(seconds)
            await self.look(anew=False)
