"""Keep Prefect from reading files in the working folder, where a stranger may have left them.

Prefect reads `.env`, `prefect.toml` and `pyproject.toml` in the current folder whenever it makes
its settings, for the first time when it is imported, and some settings name programs to run. It
also looks for modules that it imports by name in the current folder first. No setting prevents
this, so the functions that do it are replaced as soon as their modules are imported.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

OTHER_PREFECT = (
    "an installed package has a version that dtml does not support: it lacks {name}, which dtml "
    "replaces so that no file in the working folder can run programs; "
    "install dtml again with the versions in its constraints.txt (in a checkout: "
    "pip install -c constraints.txt -e .)"
)


def _nothing(*_: object) -> dict[str, object]:
    return {}


# For each module, its functions that look into the current folder, and what replaces them.
REPLACED: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "pydantic_settings.sources.providers.dotenv": {
        "DotEnvSettingsSource._read_env_files": _nothing
    },
    "prefect.settings.sources": {"TomlConfigSettingsSourceBase._read_files": _nothing},
    "prefect.utilities.importtools": {"load_module": import_module},
    # Through Alembic, Prefect's server would put the current folder first on Python's path.
    "alembic.config": {"Config.get_prepend_sys_paths_list": _nothing},
}


class _Loader(SourceFileLoader):
    """Load a module of REPLACED, and replace its functions that look into the current folder."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for path, function in REPLACED[module.__name__].items():
            class_name, _, name = path.rpartition(".")  # "" for a function of the module itself
            owner = getattr(module, class_name, None) if class_name else module
            if not hasattr(owner, name):
                raise ImportError(OTHER_PREFECT.format(name=f"{module.__name__}.{path}"))
            setattr(owner, name, function)


class _Finder(MetaPathFinder):
    """Find the modules of REPLACED, and leave all others to Python's own finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in REPLACED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


def ignore_working_folder() -> None:
    """Let Prefect take settings from the environment alone, and modules from Python's path alone.

    Call it before the first import of prefect; a second call does nothing.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
