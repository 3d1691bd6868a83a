# Every target sets the project up first: a virtual environment in .venv, pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
TOO_OTHER := 'Python 3.11 to 3.14 is needed: name one, as in make run PYTHON=python3.13'
# uv keeps what it downloads in the home; where nothing can be written there, it keeps nothing
CACHE := $(shell test -w "$$HOME" || echo --no-cache)
# Compiled code is kept: each command that starts would otherwise compile the project again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test soak check coverage results pins clean

run: .venv/.ok
	$(BIN)/dtml nightly simulated --nights 6

# What a change must pass: minutes.
test: .venv/.ok
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not soak"

# The rest: what repeats, kills, fuzzes, drives a browser or builds a wheel; examples drawn anew; the laws of arithmetic
# with the instructions of other processors.
soak: .venv/.ok
	$(BIN)/python -m pytest -n auto --dist worksteal -m soak
	$(BIN)/python -m pytest -n auto -m hypothesis --hypothesis-profile=random
	$(BIN)/python -m tests.processors

check: .venv/.ok
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Without the tests that limit what a process may write or hold: the measuring itself would not fit.
coverage: .venv/.ok
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --cov --cov-report=term -m "not soak" -k "not memory"

# Every figure of benchmarks/README.md, a file each: make results, or make results ONLY="kdd17 acl18"
results: .venv/.ok
	$(BIN)/python -m benchmarks.results $(ONLY)

.venv/.ok: pyproject.toml constraints.txt
	@$(PYTHON) -c "import sys; (3, 11) <= sys.version_info < (3, 15) or sys.exit($(TOO_OTHER))"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q uv
	UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(BIN)/uv pip install -q $(CACHE) --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[all]' --group dev
	touch $@

# The newest versions of everything that fit pyproject.toml, and the files of those that a user installs. torch is in
# neither: whoever installs it chooses its build. A user's copy of a file has no host: it lies in the folder `wheels`.
PINS := $(BIN)/uv pip compile -q --universal --python-version 3.11 --all-extras --no-header --no-annotate pyproject.toml
pins: .venv/.ok
	$(PINS) --group dev --no-emit-package torch --upgrade -o constraints.txt
	$(MAKE) pylock.toml

pylock.toml: constraints.txt
	echo "torch ; sys_platform == 'never'" > build-without-torch.txt
	$(PINS) --overrides build-without-torch.txt --no-emit-package torch -c constraints.txt --only-binary :all: --format pylock.toml -o $@
	rm build-without-torch.txt
	sed -i.before -E -e 's|url = "[^"]*/([^"/]+)"|path = "wheels/\1"|' -e 's/ upload-time = [^,]*,//' -e '/^index = /d' $@
	rm $@.before

clean:
	rm -rf .venv build *.egg-info
