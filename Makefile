# For people whose tools call make: the same as `bellglass build-sandbox`, `sandbox-status` and `sandbox-test`, each of which fails if
# something is wrong. Everything else is in the justfile.
#   make build-sandbox TEMPLATE=python BELLGLASS='sudo bellglass'
BELLGLASS ?= bellglass
TEMPLATE ?= interpreter

.PHONY: build-sandbox sandbox-status sandbox-test
build-sandbox:
	$(BELLGLASS) build-sandbox $(TEMPLATE)
sandbox-status:
	$(BELLGLASS) sandbox-status
sandbox-test:
	$(BELLGLASS) sandbox-test $(TEMPLATE)
