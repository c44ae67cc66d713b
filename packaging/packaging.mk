# Installation, packages, images and releases. docs/how-to/install.md describes the targets; packaging/install is the layout.
PREFIX     := /usr/local
DESTDIR    :=
SYSCONFDIR := /etc
DIST       := dist
ARCHES     := amd64 arm64
PARTS      := vrdma kube guest
KINDS      := deb rpm
# Everything in a release has the time of the commit.
EPOCH       = $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null || echo 0))
PKGVERSION  = $(shell packaging/version '$(VERSION)')
LAYOUT      = DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' SYSCONFDIR='$(SYSCONFDIR)' BIN='$(BIN)' packaging/install
HOSTARCH   := $(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(shell uname -m)))

# The compiler for each architecture. Debian's cross compilers have these names.
CC_amd64   := $(if $(filter amd64,$(HOSTARCH)),$(CC),x86_64-linux-gnu-gcc)
CC_arm64   := $(if $(filter arm64,$(HOSTARCH)),$(CC),aarch64-linux-gnu-gcc)

.PHONY: install install-kube uninstall package images release $(ARCHES:%=build-%) $(ARCHES:%=stage-%) $(ARCHES:%=package-%)

# sudo make install copies what make build has built: root may have no Go, and git may refuse another user's directory.
install: $(if $(wildcard $(BIN)/vrdma),,build) ## copy vrdma to PREFIX (/usr/local) below DESTDIR: programs, man pages, completions, units
	$(LAYOUT) vrdma

install-kube: $(if $(wildcard $(BIN)/vrdma-kube),,kube) ## the same for vrdma-kube
	$(LAYOUT) kube

uninstall: ## remove what make install has copied
	$(LAYOUT) uninstall

# Each architecture has its directories: build/ARCH and stage/ARCH.
$(ARCHES:%=build-%): build-%:
	@$(MAKE) --no-print-directory build $(filter kube,$(PARTS)) BIN=$(DIST)/build/$* GOARCH=$* CC='$(CC_$*)' SHIM_EXTRA=-s VERSION='$(VERSION)'

# The tree of each package. Man pages come from programs that run here.
$(ARCHES:%=stage-%): stage-%: build-% build-$(HOSTARCH)
	@rm -rf $(DIST)/stage/$*
	@for part in $(PARTS); do \
		DESTDIR=$(DIST)/stage/$*/$$part PREFIX=/usr BIN=$(DIST)/build/$* TOOLS=$(DIST)/build/$(HOSTARCH) ZSH=/zsh packaging/install $$part || exit; \
	done
	@find $(DIST)/stage/$* -exec touch -h -d @$(EPOCH) {} +

# nfpm is a tool of the module in packaging/nfpm: its 60 modules stay out of ours.
$(ARCHES:%=package-%): package-%: stage-%
	@mkdir -p $(DIST)
	@nfpm=$$($(GO) -C packaging/nfpm tool -n nfpm) && cd packaging && for part in $(PARTS); do for kind in $(KINDS); do \
		STAGE='$(abspath $(DIST))/stage/$*'/$$part PKGVERSION='$(PKGVERSION)' PKGARCH=$* SOURCE_DATE_EPOCH=$(EPOCH) \
		$$nfpm package -f nfpm/$$part.yaml -p $$kind -t '$(abspath $(DIST))/' >/dev/null || exit; \
	done; done

package: deps-package ## .deb and .rpm of vrdma, vrdma-kube and vrdma-guest in dist, for ARCHES
	@$(MAKE) --no-print-directory $(ARCHES:%=package-%) VERSION='$(VERSION)'

RELEASE = $(GO) run ./packaging/release
LIBS     = usr/lib/vrdma/libvrdma.so=$(DIST)/build/$*/libvrdma.so usr/lib/vrdma/libvrdma-sockets.so=$(DIST)/build/$*/libvrdma-sockets.so

# The SBOM of an architecture lists what is in its programs, from Go's build information.
.PHONY: $(ARCHES:%=sbom-%) $(ARCHES:%=images-%)
$(ARCHES:%=sbom-%): sbom-%: build-%
	@GOARCH= $(RELEASE) sbom --name vrdma-$* --version '$(PKGVERSION)' --epoch $(EPOCH) --out $(DIST)/vrdma-$(PKGVERSION)-$*.spdx.json \
		$(addprefix $(DIST)/build/$*/,vrdma vrdma-kube libvrdma.so libvrdma-sockets.so)

$(ARCHES:%=images-%): images-%: build-% sbom-%
	@GOARCH= $(RELEASE) image --name vrdma --version '$(PKGVERSION)' --commit '$(COMMIT)' --epoch $(EPOCH) --arch $* --entrypoint vrdma \
		--description 'software RDMA device in user space' --out $(DIST)/vrdma-$(PKGVERSION)-$*.oci.tar \
		usr/bin/vrdma=$(DIST)/build/$*/vrdma $(LIBS) usr/share/doc/vrdma/copyright=LICENSE \
		usr/share/doc/vrdma/sbom.spdx.json=$(DIST)/vrdma-$(PKGVERSION)-$*.spdx.json
	@GOARCH= $(RELEASE) image --name vrdma-kube --version '$(PKGVERSION)' --commit '$(COMMIT)' --epoch $(EPOCH) --arch $* --entrypoint vrdma-kube \
		--description 'NICs of vrdma for pods of Kubernetes' --out $(DIST)/vrdma-kube-$(PKGVERSION)-$*.oci.tar \
		usr/bin/vrdma=$(DIST)/build/$*/vrdma usr/bin/vrdma-kube=$(DIST)/build/$*/vrdma-kube $(LIBS) usr/share/doc/vrdma/copyright=LICENSE \
		usr/share/doc/vrdma/sbom.spdx.json=$(DIST)/vrdma-$(PKGVERSION)-$*.spdx.json

images: deps-package ## OCI images of vrdma and vrdma-kube as archives in dist, for ARCHES; prints their digests
	@$(MAKE) --no-print-directory $(ARCHES:%=images-%) VERSION='$(VERSION)'

# The chart of a release names its image. Its version has to be a semantic one.
CHARTVERSION = $(subst ~,-,$(PKGVERSION))
.PHONY: chart
chart:
	@rm -rf $(DIST)/chart && mkdir -p $(DIST)/chart && cp -R contrib/helm/vrdma $(DIST)/chart/
	@sed -i -e 's/^version:.*/version: $(CHARTVERSION)/' -e 's/^appVersion:.*/appVersion: "$(subst +,-,$(CHARTVERSION))"/' $(DIST)/chart/vrdma/Chart.yaml
	@tar --sort=name --mtime=@$(EPOCH) --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C $(DIST)/chart -c vrdma | gzip -9n >$(DIST)/vrdma-chart-$(CHARTVERSION).tgz

# Twice the same commit gives the same bytes.
release: deps-package ## packages, images, chart, SBOMs, notes and checksums in dist
	@rm -rf $(DIST)
	@$(MAKE) --no-print-directory $(ARCHES:%=package-%) $(ARCHES:%=images-%) chart VERSION='$(VERSION)'
	@$(RELEASE) notes --version '$(PKGVERSION)' --out $(DIST)/NOTES.md
	@rm -rf $(DIST)/build $(DIST)/stage $(DIST)/chart
	@cd $(DIST) && sha256sum *.deb *.rpm *.oci.tar *.tgz *.spdx.json NOTES.md >SHA256SUMS && cat SHA256SUMS
