# For people whose tools call make: the same as `belljar build-sandbox`, `sandbox-status` and `sandbox-test`, each of which fails if
# something is wrong. Everything else is in the justfile.
#   make build-sandbox TEMPLATE=python BELLJAR='sudo belljar'
BELLJAR ?= belljar
TEMPLATE ?= interpreter

.PHONY: build-sandbox sandbox-status sandbox-test
build-sandbox:
	$(BELLJAR) build-sandbox $(TEMPLATE)
sandbox-status:
	$(BELLJAR) sandbox-status
sandbox-test:
	$(BELLJAR) sandbox-test $(TEMPLATE)
