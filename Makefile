PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Python and pytest keep what they have compiled: without that, each worker takes 20 seconds to read the tests.
unexport PYTHONDONTWRITEBYTECODE

include toolkit/toolkit.mk

.DEFAULT_GOAL := test
.PHONY: demo test test-all fast-tests all-tests failed-tests test-kubernetes lint types types-here types-macos bench docs site compat-report screenshots clean

# One stamp per set of packages: make re-installs only when the declarations change.
$(VENV)/.dev: pyproject.toml toolkit/pyproject.toml requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt -e . -e toolkit
	$(BIN)/python -m compileall -q src toolkit/src  # as an ordinary installation would
	touch $@

# The demo has an environment of its own: shunter and its page, nothing for development. What this shunter starts
# is kept in the environment too, not in the user's history: each Python of the environment reads the .pth file.
DEMO := .venv-demo
HOME_OF_DEMO := import os, sys; os.environ.setdefault("SHUNTER_HOME", os.path.join(sys.prefix, "shunter"))
$(DEMO)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "shunter needs Python 3.11 or newer, and this is " + sys.version.split()[0] + ": make demo PYTHON=python3.11")'
	@echo 'Making $(DEMO), an environment of about 50 MB, with shunter and what its page needs.'
	@test -x $(DEMO)/bin/pip || $(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install --disable-pip-version-check -e '.[ui]'
	@echo '$(HOME_OF_DEMO)' > "$$($(DEMO)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/demo_home.pth"
	@touch $@

demo: $(DEMO)/.installed
	@examples/demo.sh $(DEMO)

# The fast and telling tests, of every part, with the types beside them.
test: $(VENV)/.dev lint
	$(MAKE) --no-print-directory --jobs=3 fast-tests types-here types-macos

test-all: $(VENV)/.dev lint
	$(MAKE) --no-print-directory --jobs=3 all-tests types-here types-macos

# Tests wait for programs, containers, clusters and time limits most of the time: two a core.
fast-tests: $(VENV)/.dev
	$(BIN)/python -m pytest -n 4 -m "not slow" tests

# MARK='-m slow' leaves out what `make test` has tested already.
all-tests: $(VENV)/.dev
	$(BIN)/python -m pytest -n 4 $(MARK) tests

# Jobs on the cluster that KUBECONFIG names, in a separate namespace, with the permissions of the documentation.
test-kubernetes: $(VENV)/.dev
	SHUNTER_TEST_CLUSTER=yes $(BIN)/python -m pytest -p no:randomly tests/kubernetes/test_cluster.py

# What failed last, again by itself.
failed-tests: $(VENV)/.dev lint types
	$(BIN)/python -m pytest --tb=short --last-failed --last-failed-no-failures none tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: types-here types-macos

# mypy forgets what it knows when the platform changes, so each has a cache.
STRICT := --strict --python-version 3.10
MACOS := --platform darwin --cache-dir .mypy_cache/macos
types-here: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/mypy $(STRICT) --cache-dir .mypy_cache/toolkit toolkit/src/shunter_toolkit

types-macos: $(VENV)/.dev
	$(BIN)/mypy $(MACOS)
	$(BIN)/mypy $(STRICT) $(MACOS)-toolkit toolkit/src/shunter_toolkit

# The toolkit's predecessor, to measure and to compare with. Compiles itself: needs gcc.
ORACLE := .venv-oracle
$(ORACLE)/bin/train:
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install --quiet --disable-pip-version-check 'sagemaker-training==5.1.4'

# The SageMaker SDK, to compare requests with.
SAGEMAKER_SDK := .venv-sagemaker-sdk
$(SAGEMAKER_SDK)/bin/python:
	$(PYTHON) -m venv $(SAGEMAKER_SDK)
	$(SAGEMAKER_SDK)/bin/python -m pip install --quiet --disable-pip-version-check 'sagemaker==2.230.0' || \
	  { rm -rf $(SAGEMAKER_SDK); exit 1; }
.PHONY: $(SAGEMAKER_SDK)
$(SAGEMAKER_SDK): $(SAGEMAKER_SDK)/bin/python

# TorchX itself, with which names, command lines and trackers are compared, and which our schedulers are offered
# to; and the MLflow of its tracker, and TensorBoard, which read what we write.
TORCHX := .venv-torchx
$(TORCHX)/bin/torchx:
	$(PYTHON) -m venv $(TORCHX)
	$(TORCHX)/bin/python -m pip install --quiet --disable-pip-version-check 'torchx==0.7.0' psutil \
	  'mlflow-skinny==3.17.2' alembic sqlalchemy 'tensorboard==2.21.0' || { rm -rf $(TORCHX); exit 1; }
.PHONY: $(TORCHX)
$(TORCHX): $(TORCHX)/bin/torchx

# Hydra, for which hydra-shunter-launcher is, and its launcher for submitit, without submitit: ours takes its place.
HYDRA := .venv-hydra
$(HYDRA)/bin/python:
	$(PYTHON) -m venv $(HYDRA)
	{ $(HYDRA)/bin/python -m pip install --quiet --disable-pip-version-check 'hydra-core==1.3.8' cloudpickle psutil && \
	  $(HYDRA)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  'hydra-submitit-launcher==1.2.0'; } || { rm -rf $(HYDRA); exit 1; }
.PHONY: $(HYDRA)
$(HYDRA): $(HYDRA)/bin/python

# NeMo-Run, which is built on TorchX, beside a TorchX. Ray, the largest of what Lepton's client names, is left out.
NEMO := .venv-nemo
$(NEMO)/bin/nemorun:
	$(PYTHON) -m venv $(NEMO)
	{ $(NEMO)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  'nemo-run==0.11.1' 'leptonai==0.27.3' && \
	  $(NEMO)/bin/python -m pip install --quiet --disable-pip-version-check 'torchx==0.7.0' psutil inquirerpy catalogue \
	  fabric fiddle typer rich jinja2 networkx omegaconf toml pydantic 'httpx[http2]==0.27.2' loguru 'urllib3<2' \
	  packaging fastapi requests uvicorn 'cloudpickle==3.0.0' pyyaml 'prometheus-fastapi-instrumentator==7.0.0' \
	  python-multipart contextlib2 pillow exceptiongroup ledoc-ui huggingface_hub argcomplete; } || \
	  { rm -rf $(NEMO); exit 1; }
.PHONY: $(NEMO)
$(NEMO): $(NEMO)/bin/nemorun

# Monarch, torchft and Ax, which are built on TorchX and find shunter in its place. Their PyTorch is the CPU build,
# where the index has one.
PRODUCTS := .venv-products
$(PRODUCTS)/bin/monarch:
	$(PYTHON) -m venv $(PRODUCTS)
	$(PRODUCTS)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0' psutil \
	  'torchmonarch==0.7.0' 'torchft==0.2.0' 'ax-platform==1.3.1' pyfakefs docstring-parser pyyaml filelock fsspec \
	  tabulate || { rm -rf $(PRODUCTS); exit 1; }
.PHONY: $(PRODUCTS)
$(PRODUCTS): $(PRODUCTS)/bin/monarch

# The AWS CLI, as a client of the endpoint on this machine.
AWSCLI := .venv-awscli
$(AWSCLI)/bin/aws:
	$(PYTHON) -m venv $(AWSCLI)
	$(AWSCLI)/bin/python -m pip install --quiet --disable-pip-version-check 'awscli==1.46.3' || \
	  { rm -rf $(AWSCLI); exit 1; }
.PHONY: $(AWSCLI)
$(AWSCLI): $(AWSCLI)/bin/aws

# AWS's framework toolkits, which train with ours in the place of the one that they were made for. What else they
# need is in our own environment.
FRAMEWORKS := .venv-frameworks
$(FRAMEWORKS)/bin/python:
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  'sagemaker-pytorch-training==3.0.0' 'sagemaker-tensorflow-training==20.5.0' \
	  'sagemaker-mxnet-training==4.3.0' 'retrying==1.3.4' 'six==1.17.0' || { rm -rf $(FRAMEWORKS); exit 1; }
.PHONY: $(FRAMEWORKS)
$(FRAMEWORKS): $(FRAMEWORKS)/bin/python

# Ray, for a real cluster of two nodes. Our own environment has no Ray: the scheduler does without.
RAY := .venv-ray
$(RAY)/bin/ray:
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check 'ray[default]==2.60.0' || \
	  { rm -rf $(RAY); exit 1; }
.PHONY: $(RAY)
$(RAY): $(RAY)/bin/ray

# The oldest Ray that jobs go to. Its newest Python is 3.11, and its dashboard fails with a newer protobuf.
RAY_OLDEST := .venv-ray-oldest
$(RAY_OLDEST)/bin/ray:
	$(PYTHON) -m venv $(RAY_OLDEST)
	$(RAY_OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check 'ray[default]==2.9.0' 'protobuf<5' || \
	  { rm -rf $(RAY_OLDEST); exit 1; }
.PHONY: $(RAY_OLDEST)
$(RAY_OLDEST): $(RAY_OLDEST)/bin/ray

# What of TorchX's public API is equal, more, differing (and why) and absent: of the versions that are recorded in
# tests/compat/recorded, written into docs/migrating-from-torchx.md too; and of the one that is installed. Fails if
# a name is absent, or differs without a reason.
compat-report: $(VENV)/.dev $(TORCHX)
	$(BIN)/python tools/compat_report.py --write
	$(BIN)/python tools/compat_report.py --python $(TORCHX)/bin/python

bench: $(VENV)/.dev $(ORACLE)/bin/train $(SAGEMAKER_SDK)/bin/python
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/toolkit.py --oracle $(ORACLE)
	$(BIN)/python benchmarks/sagemaker.py --sdk $(SAGEMAKER_SDK)

# The documentation as a site, in site/. Beside each page lies its Markdown, which llms.txt names.
site: docs $(VENV)/.dev
	$(BIN)/zensical build --clean --strict
	cd docs && find . -name '*.md' -exec cp --parents {} ../site/ \;
	rm -f site/generate.py site/requirements.txt

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py

# The pictures in docs/images: of the page, in Debian's Chromium, and of terminals.
screenshots: $(VENV)/.dev
	UPDATE_GOLDEN=1 $(BIN)/python -m pytest tests/docs/test_screenshots.py tests/docs/test_recordings.py

clean:
	rm -rf $(VENV) $(DEMO) build dist
