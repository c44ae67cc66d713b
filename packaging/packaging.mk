# Installation, packages, images and releases. docs/how-to/install.md describes the targets; packaging/install is the layout.
PREFIX     := /usr/local
DESTDIR    :=
SYSCONFDIR := /etc
DIST       := dist
ARCHES     := amd64 arm64
# Everything in a release has the time of the commit.
EPOCH       = $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null || echo 0))
PKGVERSION  = $(shell packaging/version '$(VERSION)')
LAYOUT      = DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' SYSCONFDIR='$(SYSCONFDIR)' BIN='$(BIN)' packaging/install
HOSTARCH   := $(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(shell uname -m)))

# The compiler for each architecture. Debian's cross compilers have these names.
CC_amd64   := $(if $(filter amd64,$(HOSTARCH)),$(CC),x86_64-linux-gnu-gcc)
CC_arm64   := $(if $(filter arm64,$(HOSTARCH)),$(CC),aarch64-linux-gnu-gcc)

.PHONY: install uninstall package images release $(ARCHES:%=build-%) $(ARCHES:%=stage-%) $(ARCHES:%=package-%)

install: build ## copy vrdma to PREFIX (/usr/local) below DESTDIR: programs, man pages, completions, units
	$(LAYOUT) vrdma

install-kube: kube ## the same for vrdma-kube
	$(LAYOUT) kube

uninstall: ## remove what make install has copied
	$(LAYOUT) uninstall

# Each architecture has its directories: build/ARCH and stage/ARCH.
$(ARCHES:%=build-%): build-%:
	@$(MAKE) --no-print-directory build kube BIN=$(DIST)/build/$* GOARCH=$* CC='$(CC_$*)' SHIM_EXTRA=-s VERSION='$(VERSION)'

# The tree of each package. Man pages come from programs that run here.
$(ARCHES:%=stage-%): stage-%: build-% build-$(HOSTARCH)
	@rm -rf $(DIST)/stage/$*
	@for part in vrdma kube guest; do \
		DESTDIR=$(DIST)/stage/$*/$$part PREFIX=/usr BIN=$(DIST)/build/$* TOOLS=$(DIST)/build/$(HOSTARCH) packaging/install $$part || exit; \
	done
	@find $(DIST)/stage/$* -exec touch -h -d @$(EPOCH) {} +

# nfpm is a tool of the module in packaging/: its 60 modules stay out of ours.
$(ARCHES:%=package-%): package-%: stage-%
	@mkdir -p $(DIST)
	@for part in vrdma kube guest; do for kind in deb rpm; do \
		STAGE=../$(DIST)/stage/$*/$$part PKGVERSION='$(PKGVERSION)' PKGARCH=$* SOURCE_DATE_EPOCH=$(EPOCH) \
		$(GO) -C packaging tool nfpm package -f nfpm/$$part.yaml -p $$kind -t "$(abspath $(DIST))/" | grep -v '^using' || exit; \
	done; done

package: deps-package ## .deb and .rpm of vrdma, vrdma-kube and vrdma-guest in dist, for ARCHES (amd64 arm64)
	@$(MAKE) --no-print-directory $(ARCHES:%=package-%)
