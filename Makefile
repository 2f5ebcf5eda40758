# make demo   shows a migration and proves that the program still trains the same
# make test   what continuous integration runs
# make thorough  more of the same: ranks, programs, random examples, an installation by pip
# make fuzz   10,000 programs at random, and what must hold for each
# make coverage  which lines and branches the tests of `make test` run, and whether they are enough
# make torches  training as under FSDP1 on older releases of torch
# make gpu    the tests that need a GPU
# make fixtures  the gallery of diffs, from the bundled programs
# make lines  how long the code is, and which modules are too long
# make dev    an editable install, and the commit hooks
# make docs   the documentation as a site, in build/site
# make clean  removes what was built

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
SOURCES := $(shell find fsdp_migrate codemods runtime -name '*.py') pyproject.toml constraints.txt README.md $(wildcard docs/rules/*.md)
TORCHES := 2.8 2.11 2.14.1 newest
FLOOR := 87
EXAMPLE := fixtures/transformer/original

# The modules that are imported are compiled once and kept, also where the environment says not to: else each of the tests'
# many processes compiles torch for itself, which is most of the time that it takes to start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint types lines tests thorough fuzz coverage torches fixtures gpu dev clean docs
.DELETE_ON_ERROR:
.PRECIOUS: .venv-torch-%/.installed

# Not editable: mypy and the tests see what a user installs. Stale modules of an earlier build must not come along. Of
# torch's thousands of modules few are ever imported: to compile them all takes half a minute.
$(STAMP): $(SOURCES) | $(BIN)/python
	rm -rf build
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt ".[runtime,dev]"
	@touch $@

$(BIN)/python:
	$(PYTHON) -m venv .venv

demo: $(STAMP)
	@echo; echo "== What fsdp-migrate makes of $(EXAMPLE)"; echo
	@$(BIN)/fsdp-migrate $(EXAMPLE) --diff
	@echo; echo "== Both programs, trained on two CPU processes. It trains in bfloat16, where the order of a sum shows:"
	@echo "== losses may differ by 0.002 of their value. In float32 they are the same bit by bit."; echo
	@$(BIN)/fsdp-migrate verify $(EXAMPLE)/train.py --nproc 2 --device cpu --tolerance 2e-3

# Side by side: tests that start processes wait for them now and then.
test: $(STAMP)
	$(MAKE) --jobs=2 tests lint types

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# A copy of its own, so that the commit hook, which runs this, leaves an editable install as it is.
types: $(BIN)/mypy
	rm -rf .venv/types && mkdir .venv/types
	cp -R fsdp_migrate .venv/types
	cp -R codemods runtime .venv/types/fsdp_migrate
	cd .venv && MYPYPATH=types bin/mypy --config-file ../pyproject.toml -p fsdp_migrate

$(BIN)/mypy:
	$(MAKE) $(STAMP)

# Lines of code with comments, by folder: a report, which fails nothing.
lines:
	@$(PYTHON) benchmarks/lines.py

# tests/conftest.py spreads them over the workers; what the tests of one file share is made once.
tests: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadscope -m "not gpu and not slow and not thorough"

# What `test` leaves out: more ranks, more runs of the bundled programs, more random examples, an installation by pip.
thorough: $(STAMP) torches coverage
	$(BIN)/pytest -n 2 --dist loadscope -m "thorough and not gpu"
	$(BIN)/pytest -n 2 -m slow
	$(BIN)/pytest -n 2 -m "not gpu and not ranks and not thorough and not slow" --hypothesis-profile=thorough tests/hostile tests/codemods tests/fuzz

# FSDP1 programs of every form; a seed that fails is printed (tests/fuzz/run.py --help).
fuzz: $(STAMP)
	cd tests && ../$(BIN)/python -m fuzz.run --programs 10000

# Lines and branches together, in percent; ranks and the programs of `verify` count, too.
coverage: export COVERAGE_FILE = $(CURDIR)/build/coverage/data
coverage: $(STAMP)
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run $(BIN)/pytest -n 2 --dist loadscope -m "not gpu and not slow and not thorough"
	$(BIN)/coverage combine --quiet
	for folder in codemods fsdp_migrate runtime; do \
	    echo "$$folder: $$($(BIN)/coverage report --format=total --fail-under=0 --include="$$folder/*") %"; \
	done
	$(BIN)/coverage report --format=total --fail-under=$(FLOOR)

# The runtime reaches into torch's private parts, which differ between releases: the oldest one, some in between, and the
# newest that the registry has. Two side by side: one is installed while the other's tests run. pip passes over a wheel whose
# version is installed, whatever has changed in it.
torches:
	$(MAKE) --jobs=2 $(TORCHES:%=torch-%)

torch-%: .venv-torch-%/.installed
	.venv-torch-$*/bin/pytest -m ranks tests/behaviour/test_behaviour.py

.venv-torch-newest/.installed: look-again
.PHONY: look-again

.venv-torch-%/.installed: dist/.built
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --no-compile $(if $(filter newest,$*),--upgrade torch,"torch==$*.*") \
	    "$$(echo dist/*.whl)[runtime,dev]"
	$(@D)/bin/python -m pip install --quiet --no-compile --no-deps --force-reinstall dist/*.whl
	@touch $@

dist/.built: $(SOURCES)
	rm -rf build dist
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
	@touch $@

# What the tool makes of the bundled programs, written anew: read the difference before it is committed.
fixtures: $(STAMP)
	$(BIN)/python -P -c "import runpy, sys; sys.path.append('.'); runpy.run_module('tests.gallery', run_name='__main__')"

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt ".[docs]"
	$(BIN)/mkdocs build

gpu: $(STAMP)
	$(BIN)/pytest -m gpu

dev: | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e ".[runtime,dev]"
	@rm -f $(STAMP)
	$(BIN)/pre-commit install

clean:
	rm -rf .venv .venv-torch-* build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
