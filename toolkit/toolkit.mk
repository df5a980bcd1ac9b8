# The toolkit as one file. Include this from the Makefile at the root.
.PHONY: toolkit

toolkit: dist/shunter-toolkit.pyz

dist/shunter-toolkit.pyz: toolkit/build_zipapp.py $(shell find toolkit/src -name '*.py')
	$(or $(PYTHON),python3) toolkit/build_zipapp.py $@
