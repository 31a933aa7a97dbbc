# Tatolab for Linux. `make deps build` on a fresh machine, then `make demo`.

PREFIX  ?= /usr/local
DESTDIR ?=
BIN     ?= bin
PYTHON  ?= python3
CC      ?= cc
# A Go that was unpacked where its own instructions say is found without PATH.
GO      ?= $(or $(shell command -v go),/usr/local/go/bin/go)

STATICCHECK_VERSION := v0.8.2

# What the sources hash to. Every process of one runtime must be of one build,
# and two builds of the same sources are the same build.
SOURCES := $(sort $(shell find cmd datapath dbus gl nodes python/src service v4l2 -type f \
	! -path '*/__pycache__/*' ! -name '*_test.go' ! -name '*.so' 2>/dev/null) go.mod go.sum)
STAMP   := $(shell cat $(SOURCES) python/embed.go | sha256sum | cut -c1-12)
LDFLAGS := -X tatolab.com/tatolab/service/build.Stamp=$(STAMP)

# go4vl names two pixel formats that the headers of older kernels do not.
have_fourcc = $(shell printf '\#include <linux/videodev2.h>\n' | $(CC) -E -dM - 2>/dev/null | grep -c 'V4L2_PIX_FMT_$(1) ')
export CGO_CFLAGS ?= -O2 -g
ifeq ($(call have_fourcc,P012),0)
CGO_CFLAGS += -DV4L2_PIX_FMT_P012=0x32313050u
endif
ifeq ($(call have_fourcc,AV1_FRAME),0)
CGO_CFLAGS += -DV4L2_PIX_FMT_AV1_FRAME=0x46315641u
endif

have_headers = $(shell printf '\#include <%s>\n' stdio.h $(1) | $(CC) -E - >/dev/null 2>&1 && echo yes)

# Without libyuv and libjpeg-turbo pictures are converted in Go, five times slower.
ifneq ($(call have_headers,turbojpeg.h libyuv.h),yes)
TAGS := purego
endif

# What links GL is left out where its headers are missing.
GL := $(call have_headers,EGL/egl.h GL/gl.h X11/Xlib.h X11/Xcursor/Xcursor.h X11/extensions/Xrandr.h \
	X11/extensions/Xinerama.h X11/extensions/XInput2.h X11/extensions/xf86vmode.h)
PACKAGES := ./...
ifneq ($(GL),yes)
WITHOUT  := cmd/tatolab-gl cmd/tatolab-window
PACKAGES  = $(filter-out %/cmd/tatolab-gl %/cmd/tatolab-window tatolab.com/tatolab/gl/%,$(shell $(GO) list ./...))
endif
PROGRAMS := $(filter-out $(WITHOUT),$(patsubst %/main.go,%,$(wildcard cmd/*/main.go)))

# The data path's ordinary case in C, which tatolabd lends with the Python
# package. Without a compiler or the headers of Python 3.11 it is left out, and
# the same is done in Python, at several times the CPU time.
CORE := python/src/tatolab/stream/_datapath/core
PYTHON_INCLUDE := $(shell $(PYTHON) -c 'import os, sys, sysconfig; path = sysconfig.get_path("include"); \
	print(path if sys.version_info >= (3, 11) and os.path.exists(path + "/Python.h") else "")' 2>/dev/null)

.PHONY: core build deps deps-build demo test lint test-go test-python soak bench install clean

ifeq ($(PYTHON_INCLUDE),)
core:
	@rm -f $(CORE).abi3.so
	@echo "note: without the headers of Python 3.11 or later the data path of nodes is slower; make deps installs them" >&2
else
core: $(CORE).abi3.so
$(CORE).abi3.so: $(CORE).c
	@mkdir -p build
	$(CC) -std=c11 -O2 -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers \
		-fPIC -shared -fvisibility=hidden -s -I$(PYTHON_INCLUDE) $< -o build/core.so
	@mv build/core.so $@
endif

build: core
ifneq ($(GL),yes)
	@echo "note: without the headers of GL and X11 there are no windows and no effects; make deps installs them" >&2
endif
	@mkdir -p $(BIN)
	$(GO) build -trimpath -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o $(BIN)/ $(addprefix ./,$(PROGRAMS))

deps:
	@CC='$(CC)' GO='$(GO)' PYTHON='$(PYTHON)' contrib/scripts/deps build test

deps-build:
	@CC='$(CC)' GO='$(GO)' PYTHON='$(PYTHON)' contrib/scripts/deps build

demo: deps-build
	@$(MAKE) --no-print-directory build
	@PYTHON='$(PYTHON)' contrib/scripts/demo

# The tools are of fixed versions, and live in build/.
build/venv/installed: contrib/tools/requirements.txt
	$(PYTHON) -m venv build/venv
	build/venv/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

build/bin/staticcheck-$(STATICCHECK_VERSION):
	GOBIN=$(CURDIR)/build/bin GOFLAGS= $(GO) install honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION)
	mv build/bin/staticcheck $@

lint: build/bin/staticcheck-$(STATICCHECK_VERSION) build/venv/installed
	@unformatted=$$("$$($(GO) env GOROOT)/bin/gofmt" -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go')) || exit 1; \
	if [ -n "$$unformatted" ]; then echo "gofmt would change:" $$unformatted >&2; exit 1; fi
	$(GO) vet -tags '$(TAGS)' $(PACKAGES)
	build/bin/staticcheck-$(STATICCHECK_VERSION) -tags '$(TAGS)' $(PACKAGES)
	cd python && ../build/venv/bin/ruff check .
	cd python && ../build/venv/bin/pyright --pythonpath ../build/venv/bin/python

# Signals that whoever calls make ignores (nohup, a background job of a script)
# would be ignored by the programs under test as well.
test-go: build build/venv/installed
	TATOLAB_TEST_BIN=$(CURDIR)/bin env --default-signal $(GO) test -tags '$(TAGS)' -timeout 15m $(PACKAGES)

test-python: build build/venv/installed
	build/venv/bin/python -m pytest -q python

test: lint test-go test-python

# The long forms: thousands of races, hours of flow in minutes, every fuzzer.
soak: build build/venv/installed
	TATOLAB_SOAK=1 $(GO) test -tags '$(TAGS)' -count 1 -timeout 4h $(PACKAGES)
	TATOLAB_SOAK=1 build/venv/bin/python -m pytest -q python
	GO=$(GO) contrib/scripts/fuzz

# Figures of the data path, into bench.json: docs/benchmarks.md.
bench: build build/venv/installed
	$(GO) run -tags '$(TAGS)' ./bench -python $(CURDIR)/build/venv/bin/python
	$(GO) run -tags '$(TAGS)' ./bench/pixels
	TATOLAB_TEST_BIN=$(CURDIR)/bin $(GO) test -tags '$(TAGS)' -run '^$$' -bench Save -benchtime 50x ./internal/e2e
	TATOLAB_TEST_BIN=$(CURDIR)/bin $(GO) test -tags '$(TAGS)' -run '^$$' -bench 'Camera|Peers' -benchtime 1x ./internal/e2e
	TATOLAB_TEST_BIN=$(CURDIR)/bin $(GO) test -tags '$(TAGS)' -run '^$$' -bench Peers -benchtime 1x ./contrib/testbed/cameramachine

install: build
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/licenses/tatolab
	install -m 755 $(addprefix bin/,$(notdir $(PROGRAMS))) $(DESTDIR)$(PREFIX)/bin
	install -m 644 LICENSE $(DESTDIR)$(PREFIX)/share/licenses/tatolab
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/user/tatolabd.service.d
	sed 's,/usr/bin/,$(PREFIX)/bin/,' packaging/systemd/tatolabd.service >$(DESTDIR)$(PREFIX)/lib/systemd/user/tatolabd.service
	install -m 644 packaging/systemd/tatolabd.socket $(DESTDIR)$(PREFIX)/lib/systemd/user
	if [ "$$(systemctl --version 2>/dev/null | awk 'NR == 1 { print $$2 + 0 }')" -ge 254 ] 2>/dev/null; then \
		install -m 644 packaging/systemd/tatolabd.service.d/254.conf $(DESTDIR)$(PREFIX)/lib/systemd/user/tatolabd.service.d; fi
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/catalog
	install -m 644 packaging/systemd/tatolab.catalog $(DESTDIR)$(PREFIX)/lib/systemd/catalog
	install -Dm 644 packaging/man/tatolab.1 $(DESTDIR)$(PREFIX)/share/man/man1/tatolab.1
	install -Dm 644 packaging/completion/bash/tatolab $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tatolab
	install -Dm 644 packaging/completion/zsh/_tatolab $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_tatolab
	install -Dm 644 packaging/completion/fish/tatolab.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/tatolab.fish
	install -d $(DESTDIR)$(PREFIX)/share/dbus-1/services $(DESTDIR)$(PREFIX)/share/dbus-1/interfaces
	install -m 644 packaging/dbus/*.service $(DESTDIR)$(PREFIX)/share/dbus-1/services
	install -m 644 dbus/*.xml $(DESTDIR)$(PREFIX)/share/dbus-1/interfaces

clean:
	rm -rf bin build dist bench.json $(CORE).abi3.so
