"""Keep Prefect from obeying files that it finds in the working folder, where a stranger may have
left them.

Prefect reads `.env`, `prefect.toml` and `pyproject.toml` of the current folder whenever it makes
its settings, at its import for the first time, and some settings name programs to run. It also
looks in the current folder first for modules that it imports by name. No setting ends that, so the
functions that do it are replaced when the modules that hold them are imported.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

OTHER_PREFECT = (
    "the installed packages have no {name}, so a file in the working folder could run programs: "
    "run pip install -c constraints.txt -e ."
)


def _nothing(*_: object) -> dict[str, object]:
    return {}


# By module, the functions that look into the current folder, and what stands in for them.
REPLACED: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "pydantic_settings.sources.providers.dotenv": {
        "DotEnvSettingsSource._read_env_files": _nothing
    },
    "prefect.settings.sources": {"TomlConfigSettingsSourceBase._read_files": _nothing},
    "prefect.utilities.importtools": {"load_module": import_module},
    # Prefect's server has Alembic put the current folder first among those of modules.
    "alembic.config": {"Config.get_prepend_sys_paths_list": _nothing},
}


class _Loader(SourceFileLoader):
    """Load a module of Prefect and replace its functions that look into the current folder."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for path, function in REPLACED[module.__name__].items():
            holder, _, name = path.rpartition(".")
            owner = getattr(module, holder, None) if holder else module
            if not hasattr(owner, name):
                raise ImportError(OTHER_PREFECT.format(name=f"{module.__name__}.{path}"))
            setattr(owner, name, function)


class _Finder(MetaPathFinder):
    """Find the modules whose functions are replaced, and no other."""

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
    """Let Prefect take settings from the environment alone, and modules from where Python looks.

    Call it before the first import of prefect.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
