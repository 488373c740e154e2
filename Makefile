# Everything that a newcomer needs; the work is done by cargo and by `lockify` itself.

CARGO ?= cargo
LOCKIFY = target/release/lockify

.PHONY: run check test bench peers lint ci release lib install deb check-arm64 python python-test

# A real cluster on this machine creates a tree: what does a creation cost? As `lockify demo`, without what that command does
# not need: all of `lockify`, optimised as a whole, takes three times as long to compile.
run:
	$(CARGO) run --profile quick --locked -p lockify-demo -- $(ARGS)

# What is known within minutes, without root: formatting, lints, documentation, unit tests, and the pages' tests that need
# no program.
PAGES = commands compatibility configuration figures links packages prose readme sections wings
check: lint
	$(CARGO) test --workspace --lib --bins --locked $(FEATURES)
	$(PYTHON) -B -m pytest -q -p no:cacheprovider $(PAGES:%=docs/test_%.py)

# Unit and integration tests. The dev profile optimises those that compute for long. Tests of processes mostly wait, so that more
# of them run at once than there are processors.
test: export RUST_TEST_THREADS ?= $(shell expr 2 '*' $$(nproc))
test:
	$(CARGO) test --workspace --locked $(FEATURES)

bench: release
	$(LOCKIFY) bench $(ARGS)

# Beside etcd, Redis and ZooKeeper (docs/peers.md).
peers:
	$(CARGO) run --release --locked -p lockify-cli --features peers -- bench peers $(ARGS)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked $(FEATURES) -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked $(FEATURES)

ci:
	.ci/run

release:
	$(CARGO) build --release --locked -p lockify-cli

# All that is installed; the libraries for C programs under the names that linker and loader look for (docs/c-api.md).
LIB = target/release/lib
lib:
	$(CARGO) build --release --locked -p lockify-cli -p lockify-daemon -p lockify-capi -p libdlm -p libdlm_lt
	mkdir -p $(LIB)
	cp -f target/release/liblockify.so $(LIB)/liblockify.so.0
	cp -f target/release/libdlm.so $(LIB)/libdlm.so.3
	cp -f target/release/libdlm_lt.so $(LIB)/libdlm_lt.so.3
	ln -sf liblockify.so.0 $(LIB)/liblockify.so
	ln -sf libdlm.so.3 $(LIB)/libdlm.so
	ln -sf libdlm_lt.so.3 $(LIB)/libdlm_lt.so

# What `make lib` built, into a system, or below DESTDIR.
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
UNITDIR ?= $(PREFIX)/lib/systemd/system
PUT = install -D -m 644
install:
	install -D $(LOCKIFY) $(DESTDIR)$(PREFIX)/bin/lockify
	install -D target/release/lockifyd $(DESTDIR)$(PREFIX)/sbin/lockifyd
	ln -sf ../bin/lockify $(DESTDIR)$(PREFIX)/sbin/fence_lockify
	$(PUT) $(LIB)/liblockify.so.0 $(DESTDIR)$(LIBDIR)/liblockify.so.0
	ln -sf liblockify.so.0 $(DESTDIR)$(LIBDIR)/liblockify.so
	$(PUT) $(LIB)/libdlm.so.3 $(DESTDIR)$(LIBDIR)/lockify/libdlm.so.3
	$(PUT) $(LIB)/libdlm_lt.so.3 $(DESTDIR)$(LIBDIR)/lockify/libdlm_lt.so.3
	$(PUT) crates/lock/capi/include/lockify.h $(DESTDIR)$(PREFIX)/include/lockify.h
	$(PUT) packaging/lockify.pc.in $(DESTDIR)$(LIBDIR)/pkgconfig/lockify.pc
	sed -i 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|'"$$($(LOCKIFY) --version | cut -d' ' -f2)|" \
		$(DESTDIR)$(LIBDIR)/pkgconfig/lockify.pc
	$(PUT) packaging/lockifyd.service $(DESTDIR)$(UNITDIR)/lockifyd.service
	sed -i 's|/usr/sbin|$(PREFIX)/sbin|' $(DESTDIR)$(UNITDIR)/lockifyd.service
	for unit in device export lock-server; do \
		$(PUT) packaging/lockify-array-$$unit@.service $(DESTDIR)$(UNITDIR)/lockify-array-$$unit@.service; \
	done
	sed -i 's|/usr/bin|$(PREFIX)/bin|' $(DESTDIR)$(UNITDIR)/lockify-array-*.service
	$(PUT) packaging/corosync-uidgid $(DESTDIR)/etc/corosync/uidgid.d/lockify
	$(PUT) packaging/needrestart.conf $(DESTDIR)/etc/needrestart/conf.d/lockify.conf
	$(PUT) packaging/lockifyd.8 $(DESTDIR)$(PREFIX)/share/man/man8/lockifyd.8
	mkdir -p $(DESTDIR)$(PREFIX)/share/man/man1
	$(LOCKIFY) manual $(DESTDIR)$(PREFIX)/share/man/man1
	mv $(DESTDIR)$(PREFIX)/share/man/man1/fence_lockify.8 $(DESTDIR)$(PREFIX)/share/man/man8/
	$(LOCKIFY) completions bash | $(PUT) /dev/stdin $(DESTDIR)$(PREFIX)/share/bash-completion/completions/lockify
	$(LOCKIFY) completions fish | $(PUT) /dev/stdin $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/lockify.fish
	$(LOCKIFY) completions zsh | $(PUT) /dev/stdin $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_lockify

check-arm64:
	CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc $(CARGO) check --workspace --locked --target aarch64-unknown-linux-gnu

# Debian packages, in target/deb; needs debhelper. `packaging/try-debs` tries them in a clean Debian.
deb:
	packaging/make-debs

# The Python package's wheel (docs/python.md), for every Python from 3.11 on. Tools come by pip, into target/python.
PYTHON ?= python3
PYTHON_PROFILE ?= release
WHEELS = target/wheels
python: target/python/tools
	rm -f $(WHEELS)/lockify-*.whl
	cd python && ../target/python/bin/maturin build --locked --interpreter ../target/python/bin/python --profile $(PYTHON_PROFILE) --out ../$(WHEELS)

target/python/tools: python/tools.txt
	$(PYTHON) -m venv target/python
	target/python/bin/pip install --quiet --disable-pip-version-check -r python/tools.txt
	touch $@

# Types and tests of the package as it is installed, with the daemon of `cargo build`.
python-test: python
	target/python/bin/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall $(WHEELS)/lockify-*.whl
	cd python && MYPY_CACHE_DIR=../target/python/mypy ../target/python/bin/mypy lockify tests
	cd target/python && bin/python -B -m mypy.stubtest lockify._lockify
	target/python/bin/python -B -m pytest --durations=5 python/tests
